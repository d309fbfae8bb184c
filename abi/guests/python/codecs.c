// Encodings of text: UTF-8, ASCII and Latin-1, with the error handlers strict, ignore and replace. MicroPython takes whatever it is asked
// for as UTF-8. See text.h.
#include <string.h>

#include "py/objstr.h"
#include "py/runtime.h"
#include "py/unicode.h"
#include "text.h"

typedef enum { UTF8, ASCII, LATIN1 } codec_t;
typedef enum { STRICT, IGNORE, REPLACE } on_error_t;

static const char *const codec_names[] = {"utf-8", "ascii", "latin-1"};

// The codec of a name: case does not count in it, and neither do - and _.
static codec_t find_codec(mp_obj_t name) {
    static const struct {
        const char *name;
        codec_t codec;
    } known[] = {{"utf8", UTF8}, {"ascii", ASCII}, {"usascii", ASCII}, {"latin1", LATIN1}, {"iso88591", LATIN1}};
    char plain[16];
    size_t len, kept = 0;
    const char *text = mp_obj_str_get_data(name, &len);
    for (size_t i = 0; i < len && kept < sizeof plain - 1; i++) {
        if (text[i] != '-' && text[i] != '_') {
            plain[kept++] = text[i] >= 'A' && text[i] <= 'Z' ? text[i] + 32 : text[i];
        }
    }
    plain[kept] = '\0';
    for (size_t i = 0; i < MP_ARRAY_SIZE(known); i++) {
        if (strcmp(plain, known[i].name) == 0) {
            return known[i].codec;
        }
    }
    mp_raise_msg_varg(&mp_type_LookupError, MP_ERROR_TEXT("unknown encoding: %s (a Python block knows utf-8, ascii and latin-1)"), text);
}

static on_error_t find_handler(size_t arg_count, const mp_obj_t *args) {
    if (arg_count < 3) {
        return STRICT;
    }
    const char *name = mp_obj_str_get_str(args[2]);
    if (strcmp(name, "strict") == 0) {
        return STRICT;
    }
    if (strcmp(name, "ignore") == 0) {
        return IGNORE;
    }
    if (strcmp(name, "replace") == 0) {
        return REPLACE;
    }
    mp_raise_msg_varg(&mp_type_LookupError,
        MP_ERROR_TEXT("unknown error handler: %s (a Python block knows strict, ignore and replace)"), name);
}

bool codec_is_usual(size_t arg_count, const mp_obj_t *args) {
    return arg_count < 2 || (find_codec(args[1]) == UTF8 && find_handler(arg_count, args) == STRICT);
}

// How many bytes at `at` make one character; 0 when they make none, and then `*bad` bytes belong together.
static size_t character_bytes(const byte *at, const byte *end, size_t *bad) {
    byte first = *at;
    size_t len = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    *bad = 1;
    for (size_t i = 1; i < len; i++) {
        byte least = 0x80, most = 0xBF;
        if (i == 1) {
            least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
            most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        }
        if (at + i >= end || at[i] < least || at[i] > most) {
            return 0;
        }
        *bad = i + 1;
    }
    return len;
}

static NORETURN void refuse_byte(codec_t codec, byte value, size_t place) {
    mp_raise_msg_varg(&mp_type_UnicodeError, MP_ERROR_TEXT("'%s' codec can't decode byte 0x%02x in position %u"),
        codec_names[codec], value, (unsigned)place);
}

void codec_refuse_utf8(const byte *text, size_t len) {
    size_t bad;
    for (const byte *at = text, *end = text + len; at < end;) {
        size_t good = character_bytes(at, end, &bad);
        if (good == 0) {
            refuse_byte(UTF8, *at, at - text);
        }
        at += good;
    }
    mp_raise_msg(&mp_type_UnicodeError, NULL);
}

mp_obj_t codec_decode(size_t arg_count, const mp_obj_t *args) {
    codec_t codec = find_codec(args[1]);
    on_error_t on_error = find_handler(arg_count, args);
    mp_buffer_info_t from;
    mp_get_buffer_raise(args[0], &from, MP_BUFFER_READ);
    vstr_t text;
    vstr_init(&text, from.len + 1);
    const byte *begin = from.buf, *end = begin + from.len;
    for (const byte *at = begin; at < end;) {
        size_t bad = 1, good = codec == UTF8 ? character_bytes(at, end, &bad) : codec == LATIN1 || *at < 0x80;
        if (good == 0) {
            if (on_error == STRICT) {
                refuse_byte(codec, *at, at - begin);
            } else if (on_error == REPLACE) {
                vstr_add_char(&text, 0xFFFD);
            }
            at += bad;
        } else if (codec == UTF8) {
            vstr_add_strn(&text, (const char *)at, good);
            at += good;
        } else {
            vstr_add_char(&text, *at++);
        }
    }
    return mp_obj_new_str_from_utf8_vstr(&text);
}

mp_obj_t codec_encode(size_t arg_count, const mp_obj_t *args) {
    codec_t codec = find_codec(args[1]);
    on_error_t on_error = find_handler(arg_count, args);
    GET_STR_DATA_LEN(args[0], text, len);
    if (codec == UTF8) {
        return mp_obj_new_bytes(text, len);
    }
    uint32_t most = codec == ASCII ? 0x7F : 0xFF;
    vstr_t encoded;
    vstr_init(&encoded, len + 1);
    size_t place = 0;
    for (const byte *at = text, *end = text + len; at < end; at = utf8_next_char(at), place++) {
        uint32_t c = utf8_get_char(at);
        if (c <= most) {
            vstr_add_byte(&encoded, c);
        } else if (on_error == STRICT) {
            mp_raise_msg_varg(&mp_type_UnicodeError, MP_ERROR_TEXT("'%s' codec can't encode character 0x%x in position %u"),
                codec_names[codec], (unsigned)c, (unsigned)place);
        } else if (on_error == REPLACE) {
            vstr_add_byte(&encoded, '?');
        }
    }
    return mp_obj_new_bytes_from_vstr(&encoded);
}
