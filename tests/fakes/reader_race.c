/* Drives reader.c from two sides at once, for the compiler's thread sanitizer: one thread is the servers of many streams, which write and close
   as the dice say, the main thread is the event loop. Prints how much of it happened. */
#define _GNU_SOURCE
#include "native.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STREAMS = 40, ENOUGH = 300, MOST = 100000 };

typedef struct user {
    stream *of;
    int near;
    size_t looked;
} user;

static pthread_mutex_t locks[STREAMS]; /* of the servers' ends */
static int ends[STREAMS];
static user users[STREAMS];
static long complete, looks, drops, bytes;
static atomic_int is_over;

static void *serve(void *unused) {
    static const char *parts[] = {"a\r\n0123456789\r\n", "0\r\n\r\n", "5;name\r\n12345\r\n", "zz\r\n"};
    unsigned dice = 1;
    for (int turn = 0; !is_over; turn++) {
        if (turn % 20 == 0) usleep(50); /* the other threads' turn, on one core */
        int each = rand_r(&dice) % STREAMS, what = rand_r(&dice) % 100;
        pthread_mutex_lock(&locks[each]);
        if (ends[each] >= 0 && what == 99 && turn % 3 == 0) {
            close(ends[each]);
            ends[each] = -1;
        } else if (ends[each] >= 0) {
            const char *part = parts[what < 75 ? 0 : what < 90 ? 1 : what < 95 ? 2 : 3];
            if (send(ends[each], part, strlen(part), MSG_DONTWAIT) < 0) { /* nobody reads, or nobody is there */ }
        }
        pthread_mutex_unlock(&locks[each]);
    }
    return unused;
}

static void *read_all(void *of) {
    bf_reader_run(of);
    return NULL;
}

static void begin(reader *of, int number) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) exit(3);
    pthread_mutex_lock(&locks[number]);
    if (ends[number] >= 0) close(ends[number]);
    ends[number] = pair[1];
    pthread_mutex_unlock(&locks[number]);
    users[number] = (user){bf_stream_add(of, pair[0], (uint64_t)number), pair[0], 0};
    bf_stream_expect(users[number].of, 0, MOST);
}

static void end(int number) {
    bf_stream_drop(users[number].of);
    close(users[number].near);
    users[number].of = NULL;
    drops++;
}

static void take(reader *of, int number) {
    answer taken;
    bf_stream_take(users[number].of, &taken);
    for (uint64_t each = 0; each < taken.size; each++) bytes += taken.data[each] != 0;
    if (complete % 2) bf_answer_free(&taken);
    else bf_answer_give_back(of, &taken);
    users[number].looked = 0;
}

static void hear(reader *of, const news *told) {
    static char room[4096];
    int number = (int)told->key;
    user *one = &users[number];
    if (!one->of) return;
    if (told->what & (BF_CLOSED | BF_BROKEN)) {
        take(of, number);
        end(number);
    } else if (told->what & BF_END) {
        complete++;
        take(of, number);
        if (bf_stream_expect(one->of, 0, MOST)) end(number);
    } else {
        looks++;
        for (size_t more; (more = bf_stream_peek(one->of, one->looked, room, sizeof room)) > 0;) one->looked += more;
        bf_stream_watch(one->of, 0);
    }
}

int main(void) {
    pthread_t reading, serving;
    unsigned dice = 7;
    signal(SIGPIPE, SIG_IGN);
    reader *of = bf_reader_new();
    for (int each = 0; each < STREAMS; each++) {
        pthread_mutex_init(&locks[each], NULL);
        ends[each] = -1;
    }
    pthread_create(&reading, NULL, read_all, of);
    pthread_create(&serving, NULL, serve, NULL);
    for (int turn = 0; complete < ENOUGH || looks < ENOUGH || drops < ENOUGH; turn++) {
        news told[8];
        int number = rand_r(&dice) % STREAMS, many = bf_reader_news(of, told, 8);
        for (int each = 0; each < many; each++) hear(of, &told[each]);
        if (!users[number].of) begin(of, number);
        else if (rand_r(&dice) % 200 == 0) end(number);
        if (turn % 20 == 0) {
            bf_reader_cpu_ns(of);
            usleep(50);
        }
    }
    is_over = 1;
    pthread_join(serving, NULL);
    for (int each = 0; each < STREAMS; each++) {
        if (users[each].of) end(each);
        if (ends[each] >= 0) close(ends[each]);
    }
    bf_reader_stop(of);
    pthread_join(reading, NULL);
    bf_reader_free(of);
    printf("complete %ld, looks %ld, drops %ld, bytes %ld\n", complete, looks, drops, bytes);
    return 0;
}
