/* One connection and the answer that arrives on it. Of HTTP it parses only the sizes of chunks.

   All functions but bf_arrival_ns and take_read are for the thread of the event loop. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { LINE_LIMIT = 4096, FRESH_NS = 1000000, SURE_NS = 20000 };

int64_t bf_arrival_ns(int64_t stamp_ns, int64_t apart_ns, int64_t after_ns, int64_t at_ns) {
    int64_t arrived_ns = stamp_ns - apart_ns;
    return after_ns <= arrived_ns && arrived_ns <= at_ns ? arrived_ns : at_ns;
}

/* Follows the sizes of the chunks that arrived since the last call. Returns BF_END if the answer ends
   exactly where the bytes end, BF_LOOK if only a full parse can find the end, otherwise 0. */
static int walk(stream *one) {
    while (one->next < one->size) {
        const char *line = one->data + one->next;
        size_t left = one->size - one->next, room = left < LINE_LIMIT ? left : LINE_LIMIT, digits = 0;
        uint64_t length = 0;
        const char *end = memmem(line, room, "\r\n", 2);
        if (!end) return left >= LINE_LIMIT ? BF_LOOK : 0;
        for (const char *at = line; at < end; at++, digits++) {
            int digit = *at >= '0' && *at <= '9' ? *at - '0' : (*at | 32) >= 'a' && (*at | 32) <= 'f' ? (*at | 32) - 'a' + 10 : -1;
            if (digit < 0 || digits >= 12) return BF_LOOK; /* a chunk extension, or invalid */
            length = length * 16 + (uint64_t)digit;
        }
        if (!digits || length > SIZE_MAX / 2) return BF_LOOK;
        if (!length) {
            size_t behind = left - (size_t)(end - line);
            if (behind < 4 && memcmp(end, "\r\n\r\n", behind) == 0) return 0; /* its last bytes have not arrived yet */
            return behind == 4 && memcmp(end, "\r\n\r\n", 4) == 0 ? BF_END : BF_LOOK;
        }
        one->chunks++;
        one->next += (size_t)(end - line) + 2 + (size_t)length + 2;
    }
    return 0;
}

/* Makes room for one more read of `more` bytes. Returns 0 if there is no memory. */
static int grown(stream *one, size_t more) {
    reader *of = one->of;
    if (!one->room && !one->reads_room && of->spares) { /* memory that was used before: the first access to a page may take 20 us */
        answer *spare = &of->spare[--of->spares];
        one->data = spare->data, one->times = spare->times, one->ends = spare->ends;
        one->room = spare->room, one->reads_room = spare->reads_room;
    }
    if (one->size + more > one->room) {
        size_t room = one->room ? one->room : 4096;
        while (room < one->size + more) room *= 2;
        char *data = realloc(one->data, room);
        if (!data) return 0;
        one->data = data, one->room = room;
    }
    if (one->reads == one->reads_room) {
        size_t room = one->reads_room ? 2 * one->reads_room : 32;
        int64_t *times = realloc(one->times, room * sizeof *times);
        if (times) one->times = times;
        uint64_t *ends = times ? realloc(one->ends, room * sizeof *ends) : NULL;
        if (!ends) return 0;
        one->ends = ends, one->reads_room = room;
    }
    return 1;
}

/* Removes the stream from its set. */
void leave(stream *one) {
    reader *of = one->of;
    epoll_ctl(one->is_calm ? of->calm : of->urgent, EPOLL_CTL_DEL, one->descriptor, NULL);
    one->is_calm = 0;
}

/* Moves the stream to the set in which it belongs: its reads may gather from full flow until its end. */
static void place(stream *one) {
    reader *of = one->of;
    int is_calm = one->mode == WATCHED && one->chunks >= FLOWS;
    struct epoll_event wanted = {.events = WANTED, .data.ptr = one};
    if (is_calm == one->is_calm || one->is_over || one->descriptor < 0) return;
    if (epoll_ctl(is_calm ? of->calm : of->urgent, EPOLL_CTL_ADD, one->descriptor, &wanted)) return; /* it stays in its set */
    leave(one);
    one->is_calm = is_calm;
    one->gap_ns = 0;
}

/* Ends the reading of the stream and reports why. */
static int over(stream *one, int what, int error) {
    leave(one);
    one->is_over = 1;
    one->error = error;
    tell(one, what);
    return OVER;
}

static int64_t arrived_ns(reader *of, struct msghdr *said, int64_t after_ns) {
    int64_t at_ns = now_ns(CLOCK_MONOTONIC);
    struct cmsghdr *header = CMSG_FIRSTHDR(said);
    if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_TIMESTAMPNS) return at_ns;
    if (at_ns - of->seen_ns > FRESH_NS) {
        int64_t wall_ns = now_ns(CLOCK_REALTIME), took_ns = now_ns(CLOCK_MONOTONIC) - at_ns;
        if (took_ns < SURE_NS || !of->seen_ns) { /* otherwise the thread was interrupted in between: try again at a later read */
            of->seen_ns = at_ns;
            of->apart_ns = wall_ns - at_ns - took_ns / 2;
        }
    }
    struct timespec stamp;
    memcpy(&stamp, CMSG_DATA(header), sizeof stamp);
    return bf_arrival_ns(stamp.tv_sec * INT64_C(1000000000) + stamp.tv_nsec, of->apart_ns, after_ns, at_ns);
}

/* Updates the average gap of a calm stream after a read. A stall counts as SLOW_NS at most, and a longer
   gap changes the average less than a shorter one. */
static void pace(stream *one, int64_t before_ns, uint64_t before) {
    reader *of = one->of;
    uint64_t chunks = one->chunks - before;
    if (!one->is_calm || !chunks) return;
    int64_t gap_ns = (one->last_ns - before_ns) / (int64_t)chunks, apart_ns;
    if (gap_ns > SLOW_NS) gap_ns = SLOW_NS;
    apart_ns = gap_ns - one->gap_ns;
    one->gap_ns += one->gap_ns ? apart_ns / (apart_ns < 0 ? 4 : 8) : gap_ns;
    of->chunks += chunks;
    if (one->gap_ns < of->least_gap_ns) of->least_gap_ns = one->gap_ns;
}

/* Reads once. Called by the reading thread, with the lock held. */
int take_read(stream *one) {
    reader *of = one->of;
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr aligned;
    } control;
    struct iovec room = {.iov_base = of->scratch, .iov_len = ROOM};
    struct msghdr said = {.msg_iov = &room, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t came = recvmsg(one->descriptor, &said, MSG_DONTWAIT);
    if (came == 0) return over(one, BF_CLOSED, 0);
    if (came < 0) return errno == EAGAIN ? EMPTY : errno == EINTR ? FULL : over(one, BF_BROKEN, errno);
    if (one->mode == IDLE) { /* no answer is expected */
        tell(one, BF_LOOK);
        return came == ROOM ? FULL : SHORT;
    }
    if (!grown(one, (size_t)came)) return over(one, BF_BROKEN, ENOMEM);
    int64_t before_ns = one->last_ns;
    uint64_t before = one->chunks;
    one->last_ns = arrived_ns(of, &said, before_ns);
    memcpy(one->data + one->size, of->scratch, (size_t)came);
    one->size += (size_t)came;
    one->times[one->reads] = one->last_ns;
    one->ends[one->reads++] = one->size;
    if (one->size > one->most) return over(one, BF_LOOK, 0);
    int what = one->mode == WATCHED ? walk(one) : BF_LOOK;
    pace(one, before_ns, before);
    if (what && one->mode == WATCHED) one->mode = LOOKED_AT;
    if (what) tell(one, what);
    place(one);
    return came == ROOM ? FULL : SHORT;
}

static void empty(stream *one) {
    free(one->data);
    free(one->times);
    free(one->ends);
    one->data = NULL, one->times = NULL, one->ends = NULL;
    one->size = one->room = one->reads = one->reads_room = 0;
}

void release(stream *one) {
    empty(one);
    free(one);
}

stream *bf_stream_add(reader *of, int descriptor, uint64_t key) {
    stream *one = calloc(1, sizeof *one);
    int yes = 1;
    if (!one) return NULL;
    *one = (stream){.of = of, .key = key, .descriptor = descriptor};
    struct epoll_event wanted = {.events = WANTED, .data.ptr = one};
    setsockopt(descriptor, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);
    if (epoll_ctl(of->urgent, EPOLL_CTL_ADD, descriptor, &wanted)) {
        release(one);
        return NULL;
    }
    return one;
}

/* Call it before a request is sent. Returns 0, or 1 if the connection has ended or has sent something
   unexpected. */
int bf_stream_expect(stream *one, int64_t sent_ns, size_t most) {
    pthread_mutex_lock(&one->of->lock);
    int stale = one->what;
    one->size = one->reads = one->chunks = 0;
    one->last_ns = sent_ns, one->most = most;
    one->mode = LOOKED_AT;
    place(one);
    pthread_mutex_unlock(&one->of->lock);
    return stale != 0;
}

/* Returns the number of bytes that arrived since bf_stream_expect. */
size_t bf_stream_size(stream *one) {
    pthread_mutex_lock(&one->of->lock);
    size_t size = one->size;
    pthread_mutex_unlock(&one->of->lock);
    return size;
}

/* Copies what arrived from byte `from` on, as much as fits. Returns the number of copied bytes. */
size_t bf_stream_peek(stream *one, size_t from, char *into, size_t room) {
    pthread_mutex_lock(&one->of->lock);
    size_t many = from < one->size ? one->size - from : 0;
    if (many > room) many = room;
    if (many) memcpy(into, one->data + from, many);
    pthread_mutex_unlock(&one->of->lock);
    return many;
}

/* From now on only the end of the answer is news. `next` is where the next chunk's size line begins.
   Returns the news that is already known, or 0. */
int bf_stream_watch(stream *one, size_t next) {
    pthread_mutex_lock(&one->of->lock);
    one->next = next;
    int what = one->size > one->most ? BF_LOOK : walk(one);
    if (!what) one->mode = WATCHED;
    place(one);
    settle(one, BF_LOOK); /* walk has handled those reads */
    pthread_mutex_unlock(&one->of->lock);
    return what;
}

/* Moves all that arrived since bf_stream_expect to `into`, without copying it while other requests wait.
   The caller gives it back (bf_answer_give_back) or frees it (bf_answer_free). */
void bf_stream_take(stream *one, answer *into) {
    pthread_mutex_lock(&one->of->lock);
    *into = (answer){one->data, one->times, one->ends, one->size, one->reads, one->room, one->reads_room};
    one->data = NULL, one->times = NULL, one->ends = NULL;
    one->size = one->room = one->reads = one->reads_room = 0;
    one->mode = IDLE;
    place(one);
    settle(one, BF_LOOK | BF_END);
    pthread_mutex_unlock(&one->of->lock);
}

void bf_answer_free(answer *taken) {
    free(taken->data);
    free(taken->times);
    free(taken->ends);
    *taken = (answer){0};
}

/* Stops reading the stream. The caller may close the descriptor afterwards. */
void bf_stream_drop(stream *one) {
    reader *of = one->of;
    pthread_mutex_lock(&of->lock);
    settle(one, ~0);
    leave(one);
    one->descriptor = -1;
    empty(one); /* the reading thread frees the stream itself when it wakes up */
    one->next_dropped = of->dropped;
    of->dropped = one;
    pthread_mutex_unlock(&of->lock);
}
