// JSON into Python objects, decoded in place: what the host sends, and what a block reads with json.loads.
// MicroPython's own reader takes a stream byte by byte (some 40 times slower) and does not join the escapes of surrogate pairs.
#include <string.h>

#include "py/objstr.h"
#include "py/parsenum.h"
#include "py/runtime.h"
#include "guest.h"

#define MOST_LEVELS 200  // a host sends no deeper JSON

typedef struct {
    unsigned char *begin, *at, *end;
    int level;
} reader_t;

static mp_obj_t read_value(reader_t *in);

static NORETURN void refuse(reader_t *in) {
    mp_raise_msg_varg(&mp_type_ValueError, MP_ERROR_TEXT("no JSON at byte %u"), (unsigned)(in->at - in->begin));
}

static void skip_space(reader_t *in) {
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\n' || *in->at == '\t' || *in->at == '\r')) {
        in->at++;
    }
}

static bool take(reader_t *in, char wanted) {
    skip_space(in);
    if (in->at >= in->end) {
        refuse(in);
    }
    if (*in->at != (unsigned char)wanted) {
        return false;
    }
    in->at++;
    return true;
}

static mp_obj_t read_word(reader_t *in, const char *word, mp_obj_t value) {
    size_t len = strlen(word);
    if ((size_t)(in->end - in->at) < len || memcmp(in->at, word, len) != 0) {
        refuse(in);
    }
    in->at += len;
    return value;
}

static uint32_t hex4(reader_t *in, const unsigned char *digits) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = digits[i], letter = c | 32;
        if (c >= '0' && c <= '9') {
            value = value * 16 + (c - '0');
        } else if (letter >= 'a' && letter <= 'f') {
            value = value * 16 + (letter - 'a' + 10);
        } else {
            refuse(in);
        }
    }
    return value;
}

static unsigned char *write_utf8(unsigned char *to, uint32_t c) {
    if (c < 0x80) {
        *to++ = c;
    } else if (c < 0x800) {
        *to++ = 0xC0 | c >> 6;
        *to++ = 0x80 | (c & 63);
    } else if (c < 0x10000) {
        *to++ = 0xE0 | c >> 12;
        *to++ = 0x80 | (c >> 6 & 63);
        *to++ = 0x80 | (c & 63);
    } else {
        *to++ = 0xF0 | c >> 18;
        *to++ = 0x80 | (c >> 12 & 63);
        *to++ = 0x80 | (c >> 6 & 63);
        *to++ = 0x80 | (c & 63);
    }
    return to;
}

// What follows `\u`; joins the two halves of a pair. `*from` stands behind the `u`.
static uint32_t read_escaped(reader_t *in, unsigned char **from) {
    unsigned char *at = *from, *end = in->end;
    if (end - at < 4) {
        refuse(in);
    }
    uint32_t c = hex4(in, at);
    at += 4;
    if (c >= 0xD800 && c < 0xDC00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u') {
        uint32_t low = hex4(in, at + 2);
        if (low >= 0xDC00 && low < 0xE000) {
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            at += 6;
        }
    }
    *from = at;
    return c;
}

// A text is never longer decoded than encoded, so it is written over itself.
static char *read_text(reader_t *in, size_t *len) {
    unsigned char *begin = ++in->at, *end = in->end, *from = begin;
    while (from < end && *from != '"' && *from != '\\' && *from >= 0x20) {
        from++;
    }
    unsigned char *to = from;
    while (from < end && *from != '"') {
        if (*from < 0x20) {
            in->at = from;
            refuse(in);
        }
        if (*from != '\\') {
            *to++ = *from++;
            continue;
        }
        if (end - from < 2) {
            refuse(in);
        }
        unsigned char c = from[1];
        from += 2;
        switch (c) {
            case 'n': *to++ = '\n'; break;
            case 't': *to++ = '\t'; break;
            case 'r': *to++ = '\r'; break;
            case 'b': *to++ = '\b'; break;
            case 'f': *to++ = '\f'; break;
            case 'u': to = write_utf8(to, read_escaped(in, &from)); break;
            case '"': case '\\': case '/': *to++ = c; break;
            default:
                in->at = from - 1;
                refuse(in);
        }
    }
    if (from >= end) {
        refuse(in);
    }
    in->at = from + 1;
    *len = to - begin;
    return (char *)begin;
}

static mp_obj_t read_object(reader_t *in) {
    mp_obj_t object = mp_obj_new_dict(0);
    in->at++;
    if (take(in, '}')) {
        return object;
    }
    do {
        skip_space(in);
        if (in->at >= in->end || *in->at != '"') {
            refuse(in);
        }
        size_t len;
        char *text = read_text(in, &len);
        mp_obj_t key = mp_obj_new_str(text, len);  // interned, if it is a name that the block uses: found by its address then
        if (!take(in, ':')) {
            refuse(in);
        }
        mp_obj_dict_store(object, key, read_value(in));
    } while (take(in, ','));
    if (!take(in, '}')) {
        refuse(in);
    }
    return object;
}

static mp_obj_t read_list(reader_t *in) {
    mp_obj_t list = mp_obj_new_list(0, NULL);
    in->at++;
    if (take(in, ']')) {
        return list;
    }
    do {
        mp_obj_list_append(list, read_value(in));
    } while (take(in, ','));
    if (!take(in, ']')) {
        refuse(in);
    }
    return list;
}

static void skip_digits(reader_t *in) {
    unsigned char *begin = in->at;
    while (in->at < in->end && *in->at >= '0' && *in->at <= '9') {
        in->at++;
    }
    if (in->at == begin) {
        refuse(in);
    }
}

static mp_obj_t read_number(reader_t *in) {
    char *begin = (char *)in->at;
    bool is_float = false;
    if (*in->at == '-') {
        in->at++;
    }
    if (in->at < in->end && *in->at == '0') {
        in->at++;  // nothing but a point or an exponent may follow
    } else {
        skip_digits(in);
    }
    if (in->at < in->end && *in->at == '.') {
        is_float = true;
        in->at++;
        skip_digits(in);
    }
    if (in->at < in->end && (*in->at | 32) == 'e') {
        is_float = true;
        in->at++;
        if (in->at < in->end && (*in->at == '-' || *in->at == '+')) {
            in->at++;
        }
        skip_digits(in);
    }
    size_t len = (char *)in->at - begin;
    return is_float ? mp_parse_num_float(begin, len, false, NULL) : mp_parse_num_integer(begin, len, 10, NULL);
}

static mp_obj_t read_value(reader_t *in) {
    skip_space(in);
    if (in->at >= in->end || in->level >= MOST_LEVELS) {
        refuse(in);
    }
    in->level++;
    mp_obj_t value;
    switch (*in->at) {
        case '"': {
            size_t len;
            char *text = read_text(in, &len);
            value = mp_obj_new_str_copy(&mp_type_str, (byte *)text, len);
            break;
        }
        case '{': value = read_object(in); break;
        case '[': value = read_list(in); break;
        case 't': value = read_word(in, "true", mp_const_true); break;
        case 'f': value = read_word(in, "false", mp_const_false); break;
        case 'n': value = read_word(in, "null", mp_const_none); break;
        default: value = read_number(in);
    }
    in->level--;
    return value;
}

mp_obj_t json_read(char *text, size_t len) {
    reader_t in = {(unsigned char *)text, (unsigned char *)text, (unsigned char *)text + len, 0};
    mp_obj_t value = read_value(&in);
    skip_space(&in);
    if (in.at != in.end) {
        refuse(&in);
    }
    return value;
}
