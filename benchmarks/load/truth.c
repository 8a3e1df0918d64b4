/* The truth server: a streaming server that records when each request arrived and when it sent each event.

   It implements what a load client needs of SGLang 0.5.23: POST /v1/chat/completions, /v1/completions and /generate as streams of server-sent
   events, one HTTP chunk each, GET /health and GET /v1/models. An event is due at an absolute time after its request, so a late event does
   not delay others. On SIGTERM it writes one line per request to --record:

       KEY RECEIVED_NS TOKENS EVENTS FIRST_NS ... LAST_NS

   KEY is the twelve characters before the prompt (the salt). Times are CLOCK_MONOTONIC. A request's time is when the kernel received its last
   bytes, because waiting for this program after that is waiting in the server; an event's time is the moment before send(2).

   cc -O2 -Wall -o truth truth.c
   truth --port 0 --ttft-us 50000 --token-us 5000 [--chunk 1] [--empty-every 0] [--record FILE]     prints "port N" once it listens */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_EVENTS = 512, SPIN_NS = 60000, SURE_NS = 20000, KEY = 12, BURST_TURNS = 64, CHUNKS = 8, MOST_TOKENS = 4096 };
enum api { CHAT, COMPLETIONS, GENERATE, APIS };

typedef struct record {
    char key[KEY + 1];
    int64_t received_ns;
    int tokens, events, room;
    int64_t *sent_ns;
} record;

typedef struct connection {
    int descriptor;
    char *in, *out;
    size_t in_length, in_room, out_length, out_at, out_room;
    bool busy, broken, waits_to_write, with_usage, dated;
    enum api api;
    int tokens, told;
    int64_t arrived_ns, due_ns;
    record *record;
    struct connection *next_ready;
} connection;

static int64_t ttft_ns, token_ns;
static int chunk_tokens = 1, empty_every;
static int epoll;
static volatile sig_atomic_t over;
static record **records;
static size_t record_count, record_room;
static connection **heap; /* by due_ns */
static size_t heap_count, heap_room;
static connection *ready, **ready_end = &ready; /* burst: connections that may send now */

static int64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void *grown(void *from, size_t count, size_t *room, size_t size) {
    if (count < *room) return from;
    *room = *room ? 2 * *room : 64;
    while (*room <= count) *room *= 2;
    void *larger = realloc(from, *room * size);
    if (!larger) { perror("truth"); exit(1); }
    return larger;
}

/* The heap of connections, by due time */

static void push(connection *one) {
    heap = grown(heap, heap_count, &heap_room, sizeof *heap);
    size_t at = heap_count++;
    while (at && heap[(at - 1) / 2]->due_ns > one->due_ns) { heap[at] = heap[(at - 1) / 2]; at = (at - 1) / 2; }
    heap[at] = one;
}

static connection *pop(void) {
    connection *first = heap[0], *last = heap[--heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= heap_count) break;
        if (child + 1 < heap_count && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (heap[child]->due_ns >= last->due_ns) break;
        heap[at] = heap[child];
        at = child;
    }
    if (heap_count) heap[at] = last;
    return first;
}

/* Output */

static void append(connection *to, const char *text, size_t length) {
    to->out = grown(to->out, to->out_length + length, &to->out_room, 1);
    memcpy(to->out + to->out_length, text, length);
    to->out_length += length;
}

static void append_event(connection *to, const char *json) {
    char head[24];
    size_t length = strlen(json) + 8; /* "data: " and the empty line */
    append(to, head, (size_t)sprintf(head, "%zx\r\n", length));
    append(to, "data: ", 6);
    append(to, json, length - 8);
    append(to, "\n\n\r\n", 4);
}

static const char *words(int tokens) {
    static char text[4 * MOST_TOKENS + 1];
    for (int each = 0; each < tokens; each++) memcpy(text + 4 * each, " tok", 4);
    text[4 * tokens] = 0;
    return text;
}

static void append_tokens(connection *to, int tokens) {
    static char json[4 * MOST_TOKENS + 1024];
    const char *text = words(to->api == GENERATE ? to->told + tokens : tokens); /* as SGLang does: /generate repeats all its text */
    if (to->api == CHAT)
        sprintf(json, "{\"id\":\"0f1e2d3c4b5a69788796a5b4c3d2e1f0\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"truth\","
            "\"choices\":[{\"index\":0,\"delta\":{\"role\":%s,\"content\":\"%s\",\"reasoning_content\":null,\"tool_calls\":null},"
            "\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}],\"usage\":null}", to->told ? "null" : "\"assistant\"", text);
    else if (to->api == COMPLETIONS)
        sprintf(json, "{\"id\":\"0f1e2d3c4b5a69788796a5b4c3d2e1f0\",\"object\":\"text_completion\",\"created\":1790000000,\"choices\":"
            "[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}],\"model\":\"truth\",\"usage\":null}", text);
    else
        sprintf(json, "{\"text\":\"%s\",\"output_ids\":[5],\"meta_info\":{\"id\":\"0f1e2d3c4b5a69788796a5b4c3d2e1f0\",\"finish_reason\":null,"
            "\"prompt_tokens\":10,\"completion_tokens\":%d,\"cached_tokens\":0}}", text, to->told + tokens);
    append_event(to, json);
}

static void append_end(connection *to) {
    char json[1024];
    if (to->api == GENERATE) {
        sprintf(json, "{\"text\":\"\",\"output_ids\":[],\"meta_info\":{\"id\":\"0f1e2d3c4b5a69788796a5b4c3d2e1f0\",\"finish_reason\":{\"type\":"
            "\"length\",\"length\":%d},\"prompt_tokens\":10,\"completion_tokens\":%d,\"cached_tokens\":0}}", to->tokens, to->tokens);
        append_event(to, json);
    } else {
        const char *object = to->api == CHAT ? "chat.completion.chunk" : "text_completion";
        const char *what = to->api == CHAT ? "\"delta\":{\"role\":null,\"content\":null}" : "\"text\":\"\"";
        sprintf(json, "{\"id\":\"0f1e2d3c4b5a69788796a5b4c3d2e1f0\",\"object\":\"%s\",\"created\":1790000000,\"model\":\"truth\",\"choices\":"
            "[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":null}", object, what);
        append_event(to, json);
        if (to->with_usage) {
            sprintf(json, "{\"id\":\"0f1e2d3c4b5a69788796a5b4c3d2e1f0\",\"object\":\"%s\",\"created\":1790000000,\"model\":\"truth\",\"choices\":[],"
                "\"usage\":{\"prompt_tokens\":10,\"total_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":null}}", object, to->tokens + 10, to->tokens);
            append_event(to, json);
        }
    }
    append_event(to, "[DONE]");
    append(to, "0\r\n\r\n", 5);
}

static void watch(connection *one, bool to_write) {
    if (one->waits_to_write == to_write) return;
    one->waits_to_write = to_write;
    struct epoll_event wanted = {.events = EPOLLIN | (to_write ? EPOLLOUT : 0), .data.ptr = one};
    epoll_ctl(epoll, EPOLL_CTL_MOD, one->descriptor, &wanted);
}

static void drop(connection *one) {
    if (one->broken) return;
    one->broken = true; /* never freed: heap and queue may still name it */
    close(one->descriptor);
}

static bool flush(connection *one) {
    while (one->out_at < one->out_length) {
        ssize_t sent = send(one->descriptor, one->out + one->out_at, one->out_length - one->out_at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) { watch(one, true); return false; }
        if (sent < 0) { drop(one); return false; }
        one->out_at += (size_t)sent;
    }
    one->out_at = one->out_length = 0;
    watch(one, false);
    return true;
}

static void respond(connection *one, const char *status, const char *json) {
    char head[160];
    append(one, head, (size_t)sprintf(head, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", status, strlen(json)));
    append(one, json, strlen(json));
    flush(one);
}

/* Streams */

static void queue(connection *one) {
    one->next_ready = NULL;
    *ready_end = one;
    ready_end = &one->next_ready;
}

static void note(record *to, int64_t at_ns) {
    size_t room = (size_t)to->room;
    to->sent_ns = grown(to->sent_ns, (size_t)to->events, &room, sizeof *to->sent_ns);
    to->room = (int)room;
    to->sent_ns[to->events++] = at_ns;
}

/* Send the next event, and the end of the stream after the last one; return true while there is more. */
static bool step(connection *one) {
    int left = one->tokens - one->told, now = left < chunk_tokens ? left : chunk_tokens;
    bool is_empty = empty_every && one->record->events && one->record->events % empty_every == 0;
    append_tokens(one, is_empty ? 0 : now);
    one->told += now;
    bool more = one->told < one->tokens;
    note(one->record, now_ns());
    if (!more) append_end(one);
    flush(one);
    if (!more) one->busy = false;
    return more && !one->broken;
}

static void begin(connection *one, enum api api, const char *body, int64_t received_ns) {
    static const char *limits[] = {"\"max_completion_tokens\"", "\"max_tokens\"", "\"max_new_tokens\""};
    one->tokens = 16;
    for (int each = 0; each < 3; each++) {
        const char *found = strstr(body, limits[each]);
        if (found) { one->tokens = atoi(found + strlen(limits[each]) + strspn(found + strlen(limits[each]), ": ")); break; }
    }
    if (one->tokens < 1) one->tokens = 1;
    if (one->tokens > MOST_TOKENS) one->tokens = MOST_TOKENS;
    one->api = api;
    one->told = 0;
    one->busy = true;
    one->with_usage = strstr(body, "\"include_usage\": true") || strstr(body, "\"include_usage\":true");
    record *new = calloc(1, sizeof *new);
    static const char *prompts[] = {"\"content\": \"", "\"content\":\"", "\"prompt\": \"", "\"prompt\":\"", "\"text\": \"", "\"text\":\""};
    strcpy(new->key, "-");
    for (int each = 0; each < 6; each++) {
        const char *found = strstr(body, prompts[each]);
        if (found && strlen(found) > strlen(prompts[each]) + KEY) { memcpy(new->key, found + strlen(prompts[each]), KEY); new->key[KEY] = 0; break; }
    }
    for (char *each = new->key; *each; each++) if (*each <= ' ') *each = '_';
    new->received_ns = received_ns;
    new->tokens = one->tokens;
    one->record = new;
    records = grown(records, record_count, &record_room, sizeof *records);
    records[record_count++] = new;
    const char *head = "HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 12:00:00 GMT\r\nserver: truth\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        "transfer-encoding: chunked\r\n\r\n";
    append(one, head, strlen(head));
    if (ttft_ns) flush(one); /* as SGLang does: the header is sent before the first token */
    one->due_ns = received_ns + ttft_ns;
    if (ttft_ns || token_ns) push(one); else queue(one);
}

static void serve(connection *one) {
    while (!one->busy && !one->broken && one->in_length) {
        one->in[one->in_length] = 0;
        char *end = strstr(one->in, "\r\n\r\n");
        if (!end) return;
        size_t head = (size_t)(end + 4 - one->in), content = 0;
        char *length = strcasestr(one->in, "\r\ncontent-length:");
        if (length && length < end) content = strtoul(length + 17, NULL, 10);
        if (one->in_length < head + content) return;
        int64_t received_ns = one->arrived_ns;
        char kept = one->in[head + content], method[8] = "", path[256] = "";
        one->in[head + content] = 0;
        sscanf(one->in, "%7s %255s", method, path);
        const char *body = one->in + head;
        bool post = !strcmp(method, "POST");
        if (post && strstr(path, "/chat/completions")) begin(one, CHAT, body, received_ns);
        else if (post && strstr(path, "/completions")) begin(one, COMPLETIONS, body, received_ns);
        else if (post && strstr(path, "/generate")) begin(one, GENERATE, body, received_ns);
        else if (strstr(path, "/health") || strstr(path, "/flush_cache")) respond(one, "200 OK", "{}");
        else if (strstr(path, "/v1/models")) respond(one, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\"}]}");
        else if (strstr(path, "info")) respond(one, "200 OK", "{\"model_path\":\"truth\",\"is_generation\":true,\"internal_states\":[{}]}");
        else respond(one, "404 Not Found", "{\"detail\":\"Not Found\"}");
        one->in[head + content] = kept;
        one->in_length -= head + content;
        memmove(one->in, one->in + head + content, one->in_length);
    }
}

/* Like recv(2), and also return when the kernel received the bytes. */
static ssize_t receive_some(connection *one, char *into, size_t room) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct timespec))];
    struct iovec place = {.iov_base = into, .iov_len = room};
    struct msghdr said = {.msg_iov = &place, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t came = recvmsg(one->descriptor, &said, 0);
    if (came <= 0) return came;
    one->arrived_ns = now_ns();
    struct cmsghdr *header = CMSG_FIRSTHDR(&said);
    if (header && header->cmsg_type == SCM_TIMESTAMPNS) {
        struct timespec stamp, wall;
        memcpy(&stamp, CMSG_DATA(header), sizeof stamp);
        int64_t took_ns = SURE_NS;
        while (took_ns >= SURE_NS) { /* not interrupted between the two clocks */
            one->arrived_ns = now_ns();
            clock_gettime(CLOCK_REALTIME, &wall);
            took_ns = now_ns() - one->arrived_ns;
        }
        one->arrived_ns -= (wall.tv_sec - stamp.tv_sec) * 1000000000LL + wall.tv_nsec - stamp.tv_nsec;
    }
    return came;
}

static void receive(connection *one) {
    for (;;) {
        one->in = grown(one->in, one->in_length + 16384, &one->in_room, 1);
        ssize_t came = receive_some(one, one->in + one->in_length, one->in_room - one->in_length - 1);
        if (came < 0 && errno == EAGAIN) break;
        if (came <= 0) { drop(one); return; }
        one->in_length += (size_t)came;
    }
    serve(one);
}

static void accept_all(int listener) {
    int descriptor, yes = 1;
    while ((descriptor = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        connection *new = calloc(1, sizeof *new);
        new->descriptor = descriptor;
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = new};
        epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &wanted);
    }
}

static void send_due(void) {
    while (heap_count && heap[0]->due_ns <= now_ns()) {
        connection *one = pop();
        if (one->broken) continue;
        if (step(one)) { one->due_ns += token_ns; push(one); }
        else serve(one);
    }
    for (int turn = 0; ready && turn < BURST_TURNS; turn++) {
        connection *one = ready;
        ready = one->next_ready;
        if (!ready) ready_end = &ready;
        if (one->broken) continue;
        if (one->waits_to_write) { queue(one); continue; }
        if (step(one)) queue(one);
        else serve(one);
    }
}

static void wait_for_work(struct epoll_event *found, int *count) {
    struct timespec none = {0}, long_enough = {.tv_nsec = 50000000}, until, *limit = &long_enough;
    if (ready) limit = &none;
    else if (heap_count) {
        int64_t left_ns = heap[0]->due_ns - now_ns() - SPIN_NS; /* spin for the last microseconds, so that no event is late */
        until = (struct timespec){.tv_nsec = left_ns > 0 ? (left_ns < 50000000 ? left_ns : 50000000) : 0};
        limit = &until;
    }
    *count = epoll_pwait2(epoll, found, MOST_EVENTS, limit, NULL);
}

static void write_records(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) { perror(path); exit(1); }
    for (size_t each = 0; each < record_count; each++) {
        record *one = records[each];
        fprintf(file, "%s %lld %d %d", one->key, (long long)one->received_ns, one->tokens, one->events);
        for (int event = 0; event < one->events; event++) fprintf(file, " %lld", (long long)one->sent_ns[event]);
        fputc('\n', file);
    }
    if (fclose(file)) { perror(path); exit(1); }
}

static void end(int signal) { (void)signal; over = 1; }

int main(int count, char **arguments) {
    static const struct option options[] = {{"port", 1, 0, 'p'}, {"ttft-us", 1, 0, 't'}, {"token-us", 1, 0, 'i'}, {"chunk", 1, 0, 'c'},
        {"empty-every", 1, 0, 'e'}, {"record", 1, 0, 'r'}, {0}};
    int port = 0, option;
    const char *path = NULL;
    while ((option = getopt_long(count, arguments, "", options, NULL)) != -1) switch (option) {
        case 'p': port = atoi(optarg); break;
        case 't': ttft_ns = atoll(optarg) * 1000; break;
        case 'i': token_ns = atoll(optarg) * 1000; break;
        case 'c': chunk_tokens = atoi(optarg) < 1 ? 1 : atoi(optarg) > CHUNKS ? CHUNKS : atoi(optarg); break;
        case 'e': empty_every = atoi(optarg); break;
        case 'r': path = optarg; break;
        default: return 2;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGTERM, end);
    signal(SIGINT, end);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(listener, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes); /* accepted sockets inherit it */
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 16384) || getsockname(listener, (void *)&address, &length)) {
        perror("truth");
        return 1;
    }
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &wanted);
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    static struct epoll_event found[MOST_EVENTS];
    while (!over) {
        int many;
        wait_for_work(found, &many);
        for (int each = 0; each < many; each++) {
            connection *one = found[each].data.ptr;
            if (!one) { accept_all(listener); continue; }
            if (one->broken) continue;
            if (found[each].events & EPOLLOUT && flush(one) && !one->busy) serve(one);
            if (!one->broken && found[each].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(one);
        }
        send_due();
    }
    if (path) write_records(path);
    return 0;
}
