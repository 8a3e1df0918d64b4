/* Reads the answers of many connections in a thread of its own, which needs no lock of Python's: what arrives is put aside with the kernel's
   time of arrival, and Python is told when there is something to decide. Knows of HTTP only where the next chunk of an answer begins.

   Times are CLOCK_MONOTONIC nanoseconds, as Python's perf_counter_ns. All functions but bf_run and bf_arrival_ns are for the thread of the
   event loop; the reader's lock is held for one read at a time. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 256, ROOM = 1 << 16, KEPT = 1 << 18, SPARES = 256, LINE_LIMIT = 4096, FRESH_NS = 1000000, TURNS = 16 };
enum { WANTED = EPOLLIN | EPOLLRDHUP | EPOLLET };
enum { IDLE, LOOKED_AT, WATCHED }; /* how a stream's reads are taken: nobody asked for them; each is news; only the end is */
enum { EMPTY, SHORT, FULL, OVER };     /* what a read found: nothing, less than there was room for, as much; the stream's end */

struct stream {
    reader *of;
    uint64_t key;
    int descriptor; /* -1: dropped */
    int mode, what, error;
    int64_t last_ns; /* of the newest read, or of the sending */
    char *data;
    size_t size, room;
    int64_t *times;
    uint64_t *ends;
    size_t reads, reads_room;
    size_t next; /* where the line with the next chunk's size begins */
    size_t most; /* an answer that has grown beyond it is news, and not read any further */
    stream *next_told, *next_dropped;
};

struct reader {
    pthread_mutex_t lock;
    int epoll, stop, news;
    stream *first_told, *last_told, *dropped;
    int64_t seen_ns, apart_ns; /* when the offset of the clocks was taken, and the offset */
    int runs;
    clockid_t clock;
    int64_t spent_ns;
    answer spare[SPARES];
    int spares;
    char scratch[ROOM];
};

static int64_t now_ns(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

int64_t bf_arrival_ns(int64_t stamp_ns, int64_t apart_ns, int64_t after_ns, int64_t at_ns) {
    int64_t arrived_ns = stamp_ns - apart_ns;
    return after_ns <= arrived_ns && arrived_ns <= at_ns ? arrived_ns : at_ns;
}

static void tell(stream *one, int what) {
    reader *of = one->of;
    if (!one->what) {
        one->next_told = NULL;
        if (of->first_told) of->last_told->next_told = one;
        else {
            of->first_told = one;
            eventfd_write(of->news, 1);
        }
        of->last_told = one;
    }
    one->what |= what;
}

/* Some of its news are none any more. */
static void settle(stream *one, int what) {
    reader *of = one->of;
    if (!one->what || (one->what &= ~what)) return;
    stream *before = NULL;
    for (stream *each = of->first_told; each != one; each = each->next_told) before = each;
    if (before) before->next_told = one->next_told;
    else of->first_told = one->next_told;
    if (of->last_told == one) of->last_told = before;
}

/* What the sizes of the chunks say since the last look: END when the answer ends exactly where the bytes do, LOOK where only the whole tells. */
static int walk(stream *one) {
    while (one->next < one->size) {
        const char *line = one->data + one->next;
        size_t left = one->size - one->next, room = left < LINE_LIMIT ? left : LINE_LIMIT, digits = 0;
        uint64_t length = 0;
        const char *end = memmem(line, room, "\r\n", 2);
        if (!end) return left >= LINE_LIMIT ? BF_LOOK : 0;
        for (const char *at = line; at < end; at++, digits++) {
            int digit = *at >= '0' && *at <= '9' ? *at - '0' : (*at | 32) >= 'a' && (*at | 32) <= 'f' ? (*at | 32) - 'a' + 10 : -1;
            if (digit < 0 || digits >= 12) return BF_LOOK; /* an extension, or nonsense */
            length = length * 16 + (uint64_t)digit;
        }
        if (!digits || length > SIZE_MAX / 2) return BF_LOOK;
        if (!length) {
            size_t behind = left - (size_t)(end - line);
            if (behind < 4 && memcmp(end, "\r\n\r\n", behind) == 0) return 0; /* its last bytes are still to come */
            return behind == 4 && memcmp(end, "\r\n\r\n", 4) == 0 ? BF_END : BF_LOOK;
        }
        one->next += (size_t)(end - line) + 2 + (size_t)length + 2;
    }
    return 0;
}

static int grown(stream *one, size_t more) {
    reader *of = one->of;
    if (!one->room && !one->reads_room && of->spares) { /* memory that was touched before: the first touch of a page may take 20 us */
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

/* It is not read any further. */
static int over(stream *one, int what, int error) {
    epoll_ctl(one->of->epoll, EPOLL_CTL_DEL, one->descriptor, NULL);
    one->error = error;
    tell(one, what);
    return OVER;
}

static int64_t arrived_ns(reader *of, struct msghdr *said, int64_t after_ns) {
    int64_t at_ns = now_ns(CLOCK_MONOTONIC);
    struct cmsghdr *header = CMSG_FIRSTHDR(said);
    if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_TIMESTAMPNS) return at_ns;
    if (at_ns - of->seen_ns > FRESH_NS) {
        of->seen_ns = at_ns;
        of->apart_ns = now_ns(CLOCK_REALTIME) - at_ns;
    }
    struct timespec stamp;
    memcpy(&stamp, CMSG_DATA(header), sizeof stamp);
    return bf_arrival_ns(stamp.tv_sec * INT64_C(1000000000) + stamp.tv_nsec, of->apart_ns, after_ns, at_ns);
}

static int take_read(stream *one) {
    reader *of = one->of;
    union {
        char room[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr aligned;
    } control;
    struct iovec place = {.iov_base = of->scratch, .iov_len = ROOM};
    struct msghdr said = {.msg_iov = &place, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t came = recvmsg(one->descriptor, &said, MSG_DONTWAIT);
    if (came == 0) return over(one, BF_CLOSED, 0);
    if (came < 0) return errno == EAGAIN ? EMPTY : errno == EINTR ? FULL : over(one, BF_BROKEN, errno);
    if (one->mode == IDLE) { /* nobody asked for it */
        tell(one, BF_LOOK);
        return came == ROOM ? FULL : SHORT;
    }
    if (!grown(one, (size_t)came)) return over(one, BF_BROKEN, ENOMEM);
    one->last_ns = arrived_ns(of, &said, one->last_ns);
    memcpy(one->data + one->size, of->scratch, (size_t)came);
    one->size += (size_t)came;
    one->times[one->reads] = one->last_ns;
    one->ends[one->reads++] = one->size;
    if (one->size > one->most) return over(one, BF_LOOK, 0);
    int what = one->mode == WATCHED ? walk(one) : BF_LOOK;
    if (what && one->mode == WATCHED) one->mode = LOOKED_AT;
    if (what) tell(one, what);
    return came == ROOM ? FULL : SHORT;
}

/* News come once (EPOLLET), so all is read: a short read has emptied the socket, unless its end was told with it. */
static void take(stream *one, uint32_t events) {
    reader *of = one->of;
    int to_end = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0, got = FULL;
    for (int turn = 0; got == FULL || (got == SHORT && to_end); turn++) {
        pthread_mutex_lock(&of->lock);
        got = one->descriptor < 0 ? OVER : take_read(one);
        if (got != OVER && turn == TURNS) { /* others have waited: epoll tells of it again */
            struct epoll_event wanted = {.events = WANTED, .data.ptr = one};
            epoll_ctl(of->epoll, EPOLL_CTL_MOD, one->descriptor, &wanted);
            got = EMPTY;
        }
        pthread_mutex_unlock(&of->lock);
    }
}

static void empty(stream *one) {
    free(one->data);
    free(one->times);
    free(one->ends);
    one->data = NULL, one->times = NULL, one->ends = NULL;
    one->size = one->room = one->reads = one->reads_room = 0;
}

static void release(stream *one) {
    empty(one);
    free(one);
}

static void bury(reader *of) {
    while (of->dropped) {
        stream *one = of->dropped;
        of->dropped = one->next_dropped;
        release(one);
    }
}

reader *bf_reader_new(void) {
    reader *of = calloc(1, sizeof *of);
    if (!of) return NULL;
    of->epoll = epoll_create1(EPOLL_CLOEXEC);
    of->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    of->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = NULL};
    pthread_mutex_init(&of->lock, NULL);
    if (of->epoll < 0 || of->stop < 0 || of->news < 0 || epoll_ctl(of->epoll, EPOLL_CTL_ADD, of->stop, &wanted)) {
        bf_reader_free(of);
        return NULL;
    }
    return of;
}

int bf_reader_news_descriptor(reader *of) { return of->news; }

/* Until bf_reader_stop. */
void bf_reader_run(reader *of) {
    struct epoll_event found[EVENTS];
    pthread_mutex_lock(&of->lock);
    of->runs = pthread_getcpuclockid(pthread_self(), &of->clock) == 0;
    pthread_mutex_unlock(&of->lock);
    for (int goes_on = 1; goes_on;) {
        int many = epoll_wait(of->epoll, found, EVENTS, -1);
        for (int each = 0; each < many; each++) {
            if (!found[each].data.ptr) goes_on = 0;
            else take(found[each].data.ptr, found[each].events);
        }
        if (many < 0 && errno != EINTR) goes_on = 0;
        pthread_mutex_lock(&of->lock);
        bury(of); /* epoll tells of none of them any more */
        pthread_mutex_unlock(&of->lock);
    }
    pthread_mutex_lock(&of->lock);
    of->spent_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
    of->runs = 0;
    pthread_mutex_unlock(&of->lock);
}

void bf_reader_stop(reader *of) { eventfd_write(of->stop, 1); }

/* After bf_reader_run has returned, or without it; of all its streams none may be used any more. */
void bf_reader_free(reader *of) {
    bury(of);
    while (of->spares) bf_answer_free(&of->spare[--of->spares]);
    if (of->epoll >= 0) close(of->epoll);
    if (of->stop >= 0) close(of->stop);
    if (of->news >= 0) close(of->news);
    pthread_mutex_destroy(&of->lock);
    free(of);
}

int64_t bf_reader_cpu_ns(reader *of) {
    pthread_mutex_lock(&of->lock);
    int64_t spent_ns = of->runs ? now_ns(of->clock) : of->spent_ns;
    pthread_mutex_unlock(&of->lock);
    return spent_ns;
}

int bf_reader_news(reader *of, news *told, int most) {
    int many = 0;
    pthread_mutex_lock(&of->lock);
    for (; of->first_told && many < most; many++) {
        stream *one = of->first_told;
        told[many] = (news){one->key, one->what, one->error};
        one->what = 0;
        of->first_told = one->next_told;
    }
    if (!of->first_told) {
        eventfd_t count;
        of->last_told = NULL;
        eventfd_read(of->news, &count);
    }
    pthread_mutex_unlock(&of->lock);
    return many;
}

stream *bf_stream_add(reader *of, int descriptor, uint64_t key) {
    stream *one = calloc(1, sizeof *one);
    int yes = 1;
    if (!one) return NULL;
    *one = (stream){.of = of, .key = key, .descriptor = descriptor};
    struct epoll_event wanted = {.events = WANTED, .data.ptr = one};
    setsockopt(descriptor, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);
    if (epoll_ctl(of->epoll, EPOLL_CTL_ADD, descriptor, &wanted)) {
        release(one);
        return NULL;
    }
    return one;
}

/* Before a request is sent: 0, or 1 when the connection has ended or said something that nobody asked for. */
int bf_stream_expect(stream *one, int64_t sent_ns, size_t most) {
    pthread_mutex_lock(&one->of->lock);
    int stale = one->what;
    one->size = one->reads = 0;
    one->last_ns = sent_ns, one->most = most;
    one->mode = LOOKED_AT;
    pthread_mutex_unlock(&one->of->lock);
    return stale != 0;
}

/* Bytes that came since it was expected. */
size_t bf_stream_size(stream *one) {
    pthread_mutex_lock(&one->of->lock);
    size_t size = one->size;
    pthread_mutex_unlock(&one->of->lock);
    return size;
}

/* What came from byte `from` on, as much as fits; how much that is. */
size_t bf_stream_peek(stream *one, size_t from, char *into, size_t room) {
    pthread_mutex_lock(&one->of->lock);
    size_t many = from < one->size ? one->size - from : 0;
    if (many > room) many = room;
    if (many) memcpy(into, one->data + from, many);
    pthread_mutex_unlock(&one->of->lock);
    return many;
}

/* From now on only the end is news: `next` is where the line of the next chunk's size begins. What is news already, or 0. */
int bf_stream_watch(stream *one, size_t next) {
    pthread_mutex_lock(&one->of->lock);
    one->next = next;
    int what = one->size > one->most ? BF_LOOK : walk(one);
    if (!what) one->mode = WATCHED;
    settle(one, BF_LOOK); /* those reads were looked at here */
    pthread_mutex_unlock(&one->of->lock);
    return what;
}

/* All that came since it was expected. It is the caller's, to be given back or freed: nothing is copied while others wait. */
void bf_stream_take(stream *one, answer *into) {
    pthread_mutex_lock(&one->of->lock);
    *into = (answer){one->data, one->times, one->ends, one->size, one->reads, one->room, one->reads_room};
    one->data = NULL, one->times = NULL, one->ends = NULL;
    one->size = one->room = one->reads = one->reads_room = 0;
    one->mode = IDLE;
    settle(one, BF_LOOK | BF_END);
    pthread_mutex_unlock(&one->of->lock);
}

void bf_answer_free(answer *taken) {
    free(taken->data);
    free(taken->times);
    free(taken->ends);
    *taken = (answer){0};
}

/* For the next answer, of whichever stream. */
void bf_answer_give_back(reader *of, answer *taken) {
    pthread_mutex_lock(&of->lock);
    int keeps = taken->room && taken->reads_room && taken->room <= KEPT && of->spares < SPARES;
    if (keeps) of->spare[of->spares++] = *taken;
    pthread_mutex_unlock(&of->lock);
    if (keeps) *taken = (answer){0};
    else bf_answer_free(taken);
}

/* The descriptor may be closed afterwards. */
void bf_stream_drop(stream *one) {
    reader *of = one->of;
    pthread_mutex_lock(&of->lock);
    settle(one, ~0);
    epoll_ctl(of->epoll, EPOLL_CTL_DEL, one->descriptor, NULL);
    one->descriptor = -1;
    empty(one); /* the stream itself goes when the reader has woken */
    one->next_dropped = of->dropped;
    of->dropped = one;
    pthread_mutex_unlock(&of->lock);
}
