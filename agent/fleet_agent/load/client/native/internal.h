/* What reader.c and stream.c share; none of it is seen from outside of the library. */
#ifndef BF_PARTS_H
#define BF_PARTS_H

#include "native.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <time.h>

#pragma GCC visibility push(hidden)

enum { ROOM = 1 << 16, SPARES = 256 };
enum { FLOWS = 8 }; /* an answer of so many chunks is in full flow: those of one token have fewer, and their end is what others wait for */
enum { WANTED = EPOLLIN | EPOLLRDHUP | EPOLLET };
enum { GATHER_NS = 1000000, PART = 4, SLOW_NS = PART * GATHER_NS }; /* reads gather for so long at most, which is that part of a slow stream's gap */
enum { IDLE, LOOKED_AT, WATCHED }; /* how a stream's reads are taken: nobody asked for them; each is news; only the end is */
enum { EMPTY, SHORT, FULL, OVER };     /* what a read found: nothing, less than there was room for, as much; the stream's end */

struct stream {
    reader *of;
    uint64_t key;
    int descriptor; /* -1: dropped */
    int is_over;    /* it is not read any further */
    int is_calm;    /* the calm set tells of it, else the urgent one */
    int mode, what, error;
    int64_t last_ns; /* of the newest read, or of the sending */
    char *data;
    size_t size, room;
    int64_t *times;
    uint64_t *ends;
    size_t reads, reads_room;
    size_t next;     /* where the line with the next chunk's size begins */
    uint64_t chunks; /* such lines so far */
    int64_t gap_ns;  /* about the time between two of them, once it is calm; no more than SLOW_NS, 0: not known */
    size_t most;     /* an answer that has grown beyond it is news, and not read any further */
    stream *next_told, *next_dropped;
};

struct reader {
    pthread_mutex_t lock;
    int urgent, calm; /* sets of epoll: of streams that are read at once, and of those whose reads may gather, which is in the first one */
    int stop, news;
    int is_stopped, has_calm_news, gathers; /* the reader's thread's own */
    stream *first_told, *last_told, *dropped;
    int64_t seen_ns, apart_ns; /* when the offset of the clocks was taken, and the offset */
    uint64_t chunks;      /* of calm streams since the last look at the pace */
    int64_t least_gap_ns; /* of the fastest of them */
    int64_t paced_ns, gather_ns; /* the last look at the pace, and what it said */
    int runs;
    clockid_t clock;
    int64_t spent_ns;
    answer spare[SPARES];
    int spares;
    char scratch[ROOM];
};

int64_t now_ns(clockid_t clock);
void tell(stream *one, int what);
void settle(stream *one, int what);
int take_read(stream *one);
void leave(stream *one);
void release(stream *one);

#pragma GCC visibility pop
#endif
