/* Reads the answers of many connections in a thread of its own, without Python's lock. It stores what
   arrives together with the kernel's arrival times, and notifies Python when there is something to
   decide.

   Times are CLOCK_MONOTONIC nanoseconds, like Python's perf_counter_ns. All functions but bf_reader_run
   are for the thread of the event loop. The reader's lock is held for one read at a time.

   A wake-up costs more than a read. The kernel records when everything arrived, so streams in full flow
   are not read at each of their chunks: their reads gather for `gather_ns`, and the thread wakes up once
   for all of them. The first chunks of an answer, and answers that are not streamed, are read at once
   (decision 0019). */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { EVENTS = 256, KEPT = 1 << 18, TURNS = 16 };
enum { LEAST_NS = 100000, PACE_NS = 10000000, BUSY_PER_S = 60000 };

int64_t now_ns(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

/* Adds news of a stream, and wakes up Python unless there is news already. */
void tell(stream *one, int what) {
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

/* Removes news that no longer matters. */
void settle(stream *one, int what) {
    reader *of = one->of;
    if (!one->what || (one->what &= ~what)) return;
    stream *before = NULL;
    for (stream *each = of->first_told; each != one; each = each->next_told) before = each;
    if (before) before->next_told = one->next_told;
    else of->first_told = one->next_told;
    if (of->last_told == one) of->last_told = before;
}

/* Returns how long reads may gather: a quarter of the gap between two chunks of the fastest stream, so
   that no chunk shares a read with the next one; a millisecond if there are so many chunks that the
   thread would be busy, because then they share reads anyway. 0: read at once. */
int64_t bf_gather_ns(int64_t elapsed_ns, uint64_t chunks, int64_t gap_ns) {
    if (!chunks || elapsed_ns <= 0) return 0;
    if ((double)chunks * 1e9 > (double)elapsed_ns * BUSY_PER_S || gap_ns >= SLOW_NS) return GATHER_NS;
    return gap_ns / PART < LEAST_NS ? 0 : gap_ns / PART;
}

static void look_at_pace(reader *of, int64_t at_ns) {
    if (at_ns - of->paced_ns < PACE_NS) return;
    of->gather_ns = bf_gather_ns(at_ns - of->paced_ns, of->chunks, of->least_gap_ns);
    of->chunks = 0;
    of->least_gap_ns = SLOW_NS;
    of->paced_ns = at_ns;
}

/* epoll reports an event only once (EPOLLET), so this reads everything. A short read means that the
   socket is empty, unless its end was reported too. */
static void take(stream *one, uint32_t events) {
    reader *of = one->of;
    int to_end = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0, got = FULL;
    for (int turn = 0; got == FULL || (got == SHORT && to_end); turn++) {
        pthread_mutex_lock(&of->lock);
        got = one->descriptor < 0 ? OVER : take_read(one);
        if (got != OVER && turn == TURNS) { /* let others proceed: epoll reports it again */
            struct epoll_event wanted = {.events = WANTED, .data.ptr = one};
            epoll_ctl(one->is_calm ? of->calm : of->urgent, EPOLL_CTL_MOD, one->descriptor, &wanted);
            got = EMPTY;
        }
        pthread_mutex_unlock(&of->lock);
    }
}

static void bury(reader *of) {
    while (of->dropped) {
        stream *one = of->dropped;
        of->dropped = one->next_dropped;
        release(one);
    }
}

/* Reads all streams that the set reports, after waiting up to `wait_ms` for one. Returns the number of
   reported entries, at most EVENTS. */
static int look(reader *of, int set, int wait_ms) {
    struct epoll_event found[EVENTS];
    int many = epoll_wait(set, found, EVENTS, wait_ms);
    for (int each = 0; each < many; each++) {
        void *one = found[each].data.ptr;
        if (!one) of->is_stopped = 1;
        else if (one == of) of->has_calm_news = 1;
        else take(one, found[each].events);
    }
    return many;
}

/* Switches gathering on or off: while it is on, the urgent set does not report the calm one. */
static void gather(reader *of, int gathers) {
    struct epoll_event wanted = {.events = gathers ? 0 : EPOLLIN, .data.ptr = of};
    if (of->gathers == gathers) return;
    of->gathers = gathers;
    epoll_ctl(of->urgent, EPOLL_CTL_MOD, of->calm, &wanted);
}

/* Waits until `until_ns` or until something is urgent. Returns whether something is. */
static int is_woken_before(reader *of, int64_t until_ns) {
    struct pollfd urgent = {.fd = of->urgent, .events = POLLIN};
    int64_t left_ns = until_ns - now_ns(CLOCK_MONOTONIC);
    struct timespec left = {.tv_nsec = left_ns > 0 ? left_ns : 0};
    return ppoll(&urgent, 1, &left, NULL) > 0;
}

/* Reads until stopped. While reads gather, only urgent streams wake up the thread. Gathering stays on as
   long as there is more than one stream to read at a time. */
static void read_all(reader *of) {
    int64_t looked_ns = 0, until_ns = 0;
    for (of->is_stopped = 0; !of->is_stopped;) {
        of->has_calm_news = 0;
        if ((!of->gathers || is_woken_before(of, until_ns)) && look(of, of->urgent, of->gathers ? 0 : -1) < 0 && errno != EINTR) return;
        int64_t at_ns = now_ns(CLOCK_MONOTONIC);
        if (of->gathers ? at_ns >= until_ns : of->has_calm_news) {
            int many = look(of, of->calm, 0);
            look_at_pace(of, at_ns);
            gather(of, of->gathers ? many > 1 && of->gather_ns : at_ns - looked_ns < of->gather_ns);
            looked_ns = at_ns;
            until_ns = many < EVENTS ? at_ns + of->gather_ns : at_ns;
        }
        pthread_mutex_lock(&of->lock);
        bury(of); /* no set reports these streams any more */
        pthread_mutex_unlock(&of->lock);
    }
}

reader *bf_reader_new(void) {
    reader *of = calloc(1, sizeof *of);
    if (!of) return NULL;
    of->urgent = epoll_create1(EPOLL_CLOEXEC);
    of->calm = epoll_create1(EPOLL_CLOEXEC);
    of->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    of->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = NULL}, nested = {.events = EPOLLIN, .data.ptr = of};
    pthread_mutex_init(&of->lock, NULL);
    if (of->urgent < 0 || of->calm < 0 || of->stop < 0 || of->news < 0 || epoll_ctl(of->urgent, EPOLL_CTL_ADD, of->stop, &wanted)
        || epoll_ctl(of->urgent, EPOLL_CTL_ADD, of->calm, &nested)) {
        bf_reader_free(of);
        return NULL;
    }
    return of;
}

int bf_reader_news_descriptor(reader *of) { return of->news; }

/* Runs until bf_reader_stop. */
void bf_reader_run(reader *of) {
    pthread_mutex_lock(&of->lock);
    of->runs = pthread_getcpuclockid(pthread_self(), &of->clock) == 0;
    pthread_mutex_unlock(&of->lock);
    read_all(of);
    pthread_mutex_lock(&of->lock);
    of->spent_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
    of->runs = 0;
    pthread_mutex_unlock(&of->lock);
}

void bf_reader_stop(reader *of) { eventfd_write(of->stop, 1); }

/* Call it after bf_reader_run has returned, or if it never ran. No stream may be used afterwards. */
void bf_reader_free(reader *of) {
    bury(of);
    while (of->spares) bf_answer_free(&of->spare[--of->spares]);
    if (of->urgent >= 0) close(of->urgent);
    if (of->calm >= 0) close(of->calm);
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

/* Keeps the memory for the next answer of any stream. */
void bf_answer_give_back(reader *of, answer *taken) {
    pthread_mutex_lock(&of->lock);
    int keeps = taken->room && taken->reads_room && taken->room <= KEPT && of->spares < SPARES;
    if (keeps) of->spare[of->spares++] = *taken;
    pthread_mutex_unlock(&of->lock);
    if (keeps) *taken = (answer){0};
    else bf_answer_free(taken);
}
