/* The minimal client that a load client is compared with: one epoll loop, one read at a time, one timestamp per event. It wakes up for every
   arrival, so a client that lets reads accumulate can use less CPU.

   It keeps `streams` requests of `tokens` tokens in flight until `requests` were sent, finds the end of each stream and counts the events; it
   decodes nothing and checks nothing. Its first requests are `gap` microseconds apart. The gap decides how many tokens a wake-up brings, so
   clients are compared with the same gap. It prints one JSON object: {"tokens", "cpu_s", "wall_s", "ttft_us": [...]}.

   cc -O2 -Wall -o floor floor.c
   floor PORT STREAMS REQUESTS TOKENS GAP */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_EVENTS = 512, ROOM = 65536 };

typedef struct stream {
    int descriptor, first;
    int64_t sent_ns;
    char tail[8];
} stream;

static int64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static double cpu_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
    if (count != 6) { fprintf(stderr, "floor PORT STREAMS REQUESTS TOKENS GAP\n"); return 2; }
    int port = atoi(arguments[1]), streams = atoi(arguments[2]), requests = atoi(arguments[3]), tokens = atoi(arguments[4]), yes = 1;
    char body[512], request[1024];
    int length = sprintf(body, "{\"model\":\"truth\",\"messages\":[{\"role\":\"user\",\"content\":\"000000000000 floor\"}],\"max_tokens\":%d,\"temperature\":0,"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true}}", tokens);
    int size = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
        port, length, body);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    int epoll = epoll_create1(0);
    stream *all = calloc((size_t)streams, sizeof *all);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int each = 0; each < streams; each++) {
        all[each].descriptor = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(all[each].descriptor, (void *)&address, sizeof address)) { perror("floor"); return 1; }
        setsockopt(all[each].descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &all[each]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, all[each].descriptor, &wanted);
    }
    static char data[ROOM];
    static struct epoll_event found[MOST_EVENTS];
    int64_t *ttft_ns = calloc((size_t)requests, sizeof *ttft_ns), *times = calloc((size_t)requests * ((size_t)tokens + 8), sizeof *times);
    int sent = 0, ended = 0;
    size_t events = 0, first = 0;
    double began_cpu_s = cpu_s();
    int64_t began_ns = now_ns();
    struct timespec gap = {.tv_nsec = atol(arguments[5]) * 1000};
    for (; sent < streams && sent < requests; sent++) {
        if (gap.tv_nsec) nanosleep(&gap, NULL);
        all[sent].sent_ns = now_ns();
        if (send(all[sent].descriptor, request, (size_t)size, 0) != size) { perror("floor"); return 1; }
    }
    while (ended < requests) {
        int many = epoll_wait(epoll, found, MOST_EVENTS, -1);
        for (int each = 0; each < many; each++) {
            stream *one = found[each].data.ptr;
            ssize_t came = recv(one->descriptor, data, ROOM, MSG_DONTWAIT);
            int64_t at_ns = now_ns();
            if (came <= 0) { fprintf(stderr, "floor: a stream broke\n"); return 1; }
            for (char *at = data; (at = memmem(at, (size_t)(data + came - at), "data: ", 6)); at += 6) {
                times[events++] = at_ns;
                if (!one->first) { one->first = 1; ttft_ns[first++] = at_ns - one->sent_ns; }
            }
            if (came < 5 || memcmp(data + came - 5, "0\r\n\r\n", 5)) continue;
            ended++;
            if (sent < requests) {
                one->first = 0;
                one->sent_ns = now_ns();
                if (send(one->descriptor, request, (size_t)size, 0) != size) { perror("floor"); return 1; }
                sent++;
            }
        }
    }
    double wall_s = (now_ns() - began_ns) / 1e9;
    printf("{\"tokens\": %lld, \"cpu_s\": %.6f, \"wall_s\": %.6f, \"ttft_us\": [", (long long)requests * tokens, cpu_s() - began_cpu_s, wall_s);
    for (size_t each = 0; each < first; each++) printf("%s%.1f", each ? ", " : "", ttft_ns[each] / 1e3);
    printf("]}\n");
    return 0;
}
