/* Leads one connection through reader.c by single steps, without a second thread: which of its two sets tells of the connection when. Prints
   what was wrong, and nothing when all was right. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 100000, HELLO = 10 };

static int wrong;

static void expect(int is_so, const char *what) {
    if (!is_so) {
        wrong = 1;
        printf("%s\n", what);
    }
}

/* The server writes, and the reader takes what there is. */
static void comes(reader *of, int far, const char *text) {
    if (*text && write(far, text, strlen(text)) < 0) perror("write");
    bf_reader_stop(of);
    bf_reader_run(of);
}

static void hellos_come(reader *of, int far, int many) {
    char text[FLOWS * HELLO + 1] = "";
    while (many-- > 0) strcat(text, "5\r\nhello\r\n");
    comes(of, far, text);
}

static int news_of(reader *of) {
    news told[4];
    int what = 0, many = bf_reader_news(of, told, 4);
    for (int each = 0; each < many; each++) what |= told[each].what;
    return what;
}

/* A chunk comes so long after the one before it: what is thought of the stream's pace then. */
static int64_t gap_after(reader *of, stream *one, int far, int64_t apart_ns) {
    one->last_ns = now_ns(CLOCK_MONOTONIC) - apart_ns;
    hellos_come(of, far, 1);
    return one->gap_ns;
}

static void paces(reader *of, stream *one, int far) {
    int64_t first_ns, stalled_ns, fast_ns;
    int tries = 0;
    do { /* again where this machine was as slow as the stream */
        of->least_gap_ns = SLOW_NS;
        one->gap_ns = 0;
        first_ns = gap_after(of, one, far, 1000000);
        stalled_ns = gap_after(of, one, far, INT64_C(1000000000));
        fast_ns = gap_after(of, one, far, 0);
    } while (fast_ns >= stalled_ns && ++tries < 20);
    expect(first_ns >= 1000000 && first_ns < SLOW_NS, "the first gap is believed");
    expect(stalled_ns == first_ns + (SLOW_NS - first_ns) / 8, "a stall is forgotten soon");
    expect(fast_ns < stalled_ns && fast_ns >= stalled_ns / 4 * 3, "a smaller gap counts for more");
    expect(of->least_gap_ns == (first_ns < fast_ns ? first_ns : fast_ns), "the fastest sets the pace");
}

int main(void) {
    int pair[2];
    answer taken;
    reader *of = bf_reader_new();
    if (!of || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) return 3;
    stream *one = bf_stream_add(of, pair[0], 1);
    of->paced_ns = INT64_MAX; /* no look at the pace */
    for (int turn = 0; turn < 2; turn++) {
        expect(!bf_stream_expect(one, 0, MOST) && !one->is_calm, "an answer is awaited in the urgent set");
        hellos_come(of, pair[1], 1);
        expect(news_of(of) == BF_LOOK && !bf_stream_watch(one, 0), "the first read is news, then the end is awaited");
        hellos_come(of, pair[1], FLOWS - 2);
        expect(!one->is_calm, "with its first chunks alone it stays urgent");
        hellos_come(of, pair[1], 1);
        expect(one->is_calm && of->chunks == 0, "in full flow it is calm");
        hellos_come(of, pair[1], 2);
        expect(one->size == (FLOWS + 2) * HELLO && one->reads == 4 && !news_of(of), "what the calm set tells of is read, and no news");
        expect(of->chunks == 2, "and counts for its pace");
        paces(of, one, pair[1]);
        comes(of, pair[1], "0\r\n\r\n");
        expect(news_of(of) == BF_END, "its end is news");
        expect(!one->is_calm, "after its end it is urgent again");
        bf_stream_take(one, &taken);
        bf_answer_give_back(of, &taken);
        of->chunks = 0;
    }
    bf_stream_expect(one, 0, MOST);
    hellos_come(of, pair[1], FLOWS);
    expect(news_of(of) == BF_LOOK && !bf_stream_watch(one, 0) && one->is_calm, "enough chunks in one read are enough");
    close(pair[1]);
    comes(of, pair[1], "");
    expect(news_of(of) == BF_CLOSED && !one->is_calm, "a server that goes is news, and no set tells of it");
    bf_stream_watch(one, 0);
    expect(!one->is_calm, "nor afterwards");
    bf_stream_drop(one);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, &pair[0])) return 3;
    stream *other = bf_stream_add(of, pair[0], 2);
    bf_stream_expect(other, 0, MOST);
    hellos_come(of, pair[1], FLOWS);
    bf_stream_watch(other, 0);
    expect(other->is_calm, "it flows");
    bf_stream_drop(other);
    expect(!other->is_calm, "one that is dropped in full flow is in no set");
    bf_reader_free(of);
    return wrong;
}
