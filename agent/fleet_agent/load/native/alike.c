/* Reads a run of events that differ from an earlier one in nothing but their text: see alike.py, which says what is alike, and does the same. */
#define _GNU_SOURCE
#include "native.h"

#include <string.h>

/* Where the text from `at` on ends, which is a quote; 0 where it would need unescaping, is no UTF-8 or has no end. */
static size_t text_end(const unsigned char *data, size_t size, size_t at) {
    while (at < size) {
        unsigned char first = data[at];
        if (first == '"') return at;
        if (first < 0x20 || first == '\\') return 0;
        if (first < 0x80) {
            at++;
            continue;
        }
        size_t more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || at + more >= size) return 0;
        unsigned char second = data[at + 1], least = 0x80, most = 0xBF; /* Unicode 15, table 3-7 */
        if (first == 0xE0) least = 0xA0;
        if (first == 0xED) most = 0x9F;
        if (first == 0xF0) least = 0x90;
        if (first == 0xF4) most = 0x8F;
        if (second < least || second > most) return 0;
        for (size_t next = 2; next <= more; next++)
            if ((data[at + next] & 0xC0) != 0x80) return 0;
        at += more + 1;
    }
    return 0;
}

/* The size that a chunk's line says, and where its content begins; 0 for a line that is not just a number. */
static size_t chunk(const char *data, size_t size, size_t at, size_t *begins) {
    size_t length = 0, from = at;
    for (; at < size && at - from < 8; at++) {
        char each = data[at];
        int digit = each >= '0' && each <= '9' ? each - '0' : (each | 32) >= 'a' && (each | 32) <= 'f' ? (each | 32) - 'a' + 10 : -1;
        if (digit < 0) break;
        length = length * 16 + (size_t)digit;
    }
    if (at == from || at + 2 > size || data[at] != '\r' || data[at + 1] != '\n') return 0;
    *begins = at + 2;
    return length;
}

/* From byte `at` on, where a chunk begins: the times of such events go to `into_ns`, their texts to `into`, as many as there are. */
run bf_alike(const char *data, size_t size, size_t at, const char *before, size_t before_size, const char *behind, size_t behind_size,
             const int64_t *times_ns, const uint64_t *ends, size_t read, int64_t *into_ns, char *into) {
    run found = {.at = at};
    for (;;) {
        size_t begins = 0, length = chunk(data, size, found.at, &begins), text = begins + before_size;
        if (!length || length > size || length < before_size + behind_size - 2 || text + behind_size > size) return found;
        if (memcmp(data + begins, before, before_size)) return found;
        size_t ended = text_end((const unsigned char *)data, size, text);
        if (ended <= text || ended + behind_size > size || memcmp(data + ended, behind, behind_size)) return found;
        if (length != ended + behind_size - 2 - begins) return found;
        while (ends[read] < ended + behind_size - 2) read++; /* the read that completed the event; the chunk's own end may come later */
        into_ns[found.events++] = times_ns[read];
        memcpy(into + found.text_size, data + text, ended - text);
        found.text_size += ended - text;
        found.at = ended + behind_size;
    }
}
