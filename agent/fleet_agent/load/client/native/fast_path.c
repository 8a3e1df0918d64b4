/* Reads a run of events that differ from an earlier one only in their text. fast_path.py defines
   which events match and does the same in Python, except for texts with escapes, which it leaves to
   the JSON parser. */
#define _GNU_SOURCE
#include "native.h"

#include <string.h>

static int digit(char each) {
    return each >= '0' && each <= '9' ? each - '0' : (each | 32) >= 'a' && (each | 32) <= 'f' ? (each | 32) - 'a' + 10 : -1;
}

/* Returns the length in bytes of the UTF-8 character at `at` (Unicode 15, table 3-7), 0 if invalid. */
static size_t character(const unsigned char *data, size_t size, size_t at) {
    unsigned char first = data[at], least = 0x80, most = 0xBF;
    size_t more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    if (first < 0xC2 || first > 0xF4 || at + more >= size) return 0;
    if (first == 0xE0) least = 0xA0;
    if (first == 0xED) most = 0x9F;
    if (first == 0xF0) least = 0x90;
    if (first == 0xF4) most = 0x8F;
    if (data[at + 1] < least || data[at + 1] > most) return 0;
    for (size_t next = 2; next <= more; next++)
        if ((data[at + next] & 0xC0) != 0x80) return 0;
    return more + 1;
}

/* Returns the UTF-16 unit of the \uXXXX at `at`, -1 if there is none. */
static long unit(const unsigned char *data, size_t size, size_t at) {
    long value = 0;
    if (at + 6 > size || data[at] != '\\' || data[at + 1] != 'u') return -1;
    for (size_t next = 2; next < 6; next++) {
        int each = digit((char)data[at + next]);
        if (each < 0) return -1;
        value = value * 16 + each;
    }
    return value;
}

/* Writes the character of the escape at `at` to `into` as UTF-8. Returns the bytes that the escape
   takes, 0 if it is invalid or half of a surrogate pair. */
static size_t escape(const unsigned char *data, size_t size, size_t at, char *into, size_t *written) {
    static const char names[] = "\"\\/bfnrt", said[] = "\"\\/\b\f\n\r\t";
    const char *found = at + 1 < size && data[at + 1] ? strchr(names, data[at + 1]) : NULL;
    if (found) {
        into[(*written)++] = said[found - names];
        return 2;
    }
    long value = unit(data, size, at);
    size_t taken = 6;
    if (value >= 0xD800 && value < 0xDC00) {
        long low = unit(data, size, at + 6);
        if (low < 0xDC00 || low > 0xDFFF) return 0;
        value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
        taken = 12;
    } else if (value < 0 || (value >= 0xDC00 && value < 0xE000)) return 0;
    char *end = into + *written;
    if (value < 0x80) *end++ = (char)value;
    else {
        if (value < 0x800) *end++ = (char)(0xC0 | value >> 6);
        else {
            if (value < 0x10000) *end++ = (char)(0xE0 | value >> 12);
            else {
                *end++ = (char)(0xF0 | value >> 18);
                *end++ = (char)(0x80 | (value >> 12 & 0x3F));
            }
            *end++ = (char)(0x80 | (value >> 6 & 0x3F));
        }
        *end++ = (char)(0x80 | (value & 0x3F));
    }
    *written = (size_t)(end - into);
    return taken;
}

/* Writes the text of the JSON string that begins at `at`; it is never longer than the string. Returns
   the position of the closing quote, 0 if the string is invalid. */
static size_t text(const unsigned char *data, size_t size, size_t at, char *into, size_t *written) {
    while (at < size) {
        size_t taken = 1;
        if (data[at] == '"') return at;
        if (data[at] < 0x20) return 0;
        if (data[at] == '\\') taken = escape(data, size, at, into, written);
        else {
            if (data[at] >= 0x80) taken = character(data, size, at);
            memcpy(into + *written, data + at, taken);
            *written += taken;
        }
        if (!taken) return 0;
        at += taken;
    }
    return 0;
}

/* Returns the size in a chunk's size line and sets where its content begins; 0 if the line is not a
   plain hexadecimal number. */
static size_t chunk(const char *data, size_t size, size_t at, size_t *begins) {
    size_t length = 0, from = at;
    for (; at < size && at - from < 8; at++) {
        int each = digit(data[at]);
        if (each < 0) break;
        length = length * 16 + (size_t)each;
    }
    if (at == from || at + 2 > size || data[at] != '\r' || data[at + 1] != '\n') return 0;
    *begins = at + 2;
    return length;
}

/* Reads all consecutive matching events from byte `at`, where a chunk begins. Writes their times to
   `into_ns` and their texts to `into`. */
run bf_read_events(const char *data, size_t size, size_t at, const char *before, size_t before_size, const char *behind, size_t behind_size,
             const int64_t *times_ns, const uint64_t *ends, size_t read, int64_t *into_ns, char *into) {
    run found = {.at = at};
    for (;;) {
        size_t begins = 0, length = chunk(data, size, found.at, &begins), from = begins + before_size, written = found.text_size;
        if (!length || length > size || length < before_size + behind_size - 2 || from + behind_size > size) return found;
        if (memcmp(data + begins, before, before_size)) return found;
        size_t ended = text((const unsigned char *)data, size, from, into, &written);
        if (ended <= from || ended + behind_size > size || memcmp(data + ended, behind, behind_size)) return found;
        if (length != ended + behind_size - 2 - begins) return found;
        while (ends[read] < ended + behind_size - 2) read++; /* the read that completed the event; the end of the chunk may arrive later */
        into_ns[found.events++] = times_ns[read];
        found.text_size = written;
        found.at = ended + behind_size;
    }
}
