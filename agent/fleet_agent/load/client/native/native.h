/* The interface of the C parts of the load client. library.py declares the same structs and functions
   for ctypes. */
#ifndef BF_NATIVE_H
#define BF_NATIVE_H

#include <stddef.h>
#include <stdint.h>

enum { BF_LOOK = 1, BF_END = 2, BF_CLOSED = 4, BF_BROKEN = 8 };

typedef struct reader reader;
typedef struct stream stream;

typedef struct news {
    uint64_t key;
    int32_t what, error; /* bits of BF_*; errno of BF_BROKEN */
} news;

typedef struct answer {
    char *data;
    int64_t *times; /* arrival of each read */
    uint64_t *ends; /* number of bytes up to the end of each read */
    uint64_t size, reads;
    uint64_t room, reads_room; /* allocated bytes, and allocated entries of times and ends */
} answer;

typedef struct run {
    uint64_t at, events, text_size; /* byte after the last event, number of events, bytes of their texts */
} run;

run bf_read_events(const char *data, size_t size, size_t at, const char *before, size_t before_size, const char *behind, size_t behind_size,
             const int64_t *times_ns, const uint64_t *ends, size_t read, int64_t *into_ns, char *into);
int64_t bf_arrival_ns(int64_t stamp_ns, int64_t apart_ns, int64_t after_ns, int64_t at_ns);
int64_t bf_gather_ns(int64_t elapsed_ns, uint64_t chunks, int64_t gap_ns);
reader *bf_reader_new(void);
int bf_reader_news_descriptor(reader *);
void bf_reader_run(reader *);
void bf_reader_stop(reader *);
void bf_reader_free(reader *);
int64_t bf_reader_cpu_ns(reader *);
int bf_reader_news(reader *, news *, int most);
stream *bf_stream_add(reader *, int descriptor, uint64_t key);
int bf_stream_expect(stream *, int64_t sent_ns, size_t most);
size_t bf_stream_size(stream *);
size_t bf_stream_peek(stream *, size_t from, char *into, size_t room);
int bf_stream_watch(stream *, size_t next);
void bf_stream_take(stream *, answer *into);
void bf_answer_free(answer *);
void bf_answer_give_back(reader *, answer *);
void bf_stream_drop(stream *);

#endif
