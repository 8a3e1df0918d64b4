/* Declarations that reader.c and stream.c share. They are not visible outside of the library. */
#ifndef BF_PARTS_H
#define BF_PARTS_H

#include "native.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <time.h>

#pragma GCC visibility push(hidden)

enum { ROOM = 1 << 16, SPARES = 256 };
/* An answer is in full flow from this number of chunks on. Answers of one token have fewer, and other
   requests wait for their end. */
enum { FLOWS = 8 };
enum { WANTED = EPOLLIN | EPOLLRDHUP | EPOLLET };
/* Reads gather for at most GATHER_NS, which is 1/PART of the gap between chunks of a slow stream. */
enum { GATHER_NS = 1000000, PART = 4, SLOW_NS = PART * GATHER_NS };
/* How a stream treats reads: IDLE, no answer is expected; LOOKED_AT, each read is news; WATCHED, only
   the end of the answer is news. */
enum { IDLE, LOOKED_AT, WATCHED };
/* The result of a read: no data; less than fits into the buffer; a full buffer; the end of the stream. */
enum { EMPTY, SHORT, FULL, OVER };

struct stream {
    reader *of;
    uint64_t key;
    int descriptor; /* -1: dropped */
    int is_over;    /* no further reads */
    int is_calm;    /* it is in the calm set, otherwise in the urgent one */
    int mode, what, error;
    int64_t last_ns; /* of the newest read, or of sending the request */
    char *data;
    size_t size, room;
    int64_t *times;
    uint64_t *ends;
    size_t reads, reads_room;
    size_t next;     /* where the next chunk's size line begins */
    uint64_t chunks; /* number of size lines so far */
    int64_t gap_ns;  /* average time between two chunks while calm, at most SLOW_NS; 0: unknown */
    size_t most;     /* a longer answer is reported as news and not read any further */
    stream *next_told, *next_dropped;
};

struct reader {
    pthread_mutex_t lock;
    /* Two epoll sets: streams that are read at once, and streams whose reads may gather. The calm set is a
       member of the urgent set. */
    int urgent, calm;
    int stop, news;
    int is_stopped, has_calm_news, gathers; /* used by the reading thread only */
    stream *first_told, *last_told, *dropped;
    int64_t seen_ns, apart_ns; /* when the offset between the clocks was measured, and the offset */
    uint64_t chunks;      /* of calm streams since the last update of gather_ns */
    int64_t least_gap_ns; /* the gap of the fastest calm stream */
    int64_t paced_ns, gather_ns; /* when gather_ns was updated, and how long reads gather */
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
