// Python objects as JSON, strictly: what JSON has no form for is the author's mistake and never written as something else.
#include <math.h>
#include <string.h>

#include "py/objtuple.h"
#include "py/objtype.h"
#include "py/runtime.h"
#include "py/unicode.h"
#include "guest.h"

#define MOST_LEVELS 200  // the host refuses less deep ones too; here it stops a list that holds itself

static void add(buffer_t *out, const char *text) {
    buffer_add(out, text, strlen(text));
}

static void print_into(void *out, const char *text, size_t len) {
    buffer_add(out, text, len);
}

static const char hex[] = "0123456789abcdef";

const json_style_t json_compact = {",", ":", false};

static void write_escaped(buffer_t *out, uint32_t unit) {
    char escaped[] = {'\\', 'u', hex[unit >> 12], hex[unit >> 8 & 15], hex[unit >> 4 & 15], hex[unit & 15]};
    buffer_add(out, escaped, sizeof escaped);
}

// A character that is not ASCII, as its escape or pair of escapes. Gives the place of its last byte.
static const unsigned char *write_character(buffer_t *out, const unsigned char *at) {
    uint32_t c = utf8_get_char(at);
    if (c < 0x10000) {
        write_escaped(out, c);
    } else {
        write_escaped(out, 0xD800 + ((c - 0x10000) >> 10));
        write_escaped(out, 0xDC00 + ((c - 0x10000) & 0x3FF));
    }
    return utf8_next_char(at) - 1;
}

static void write_text(buffer_t *out, const char *text, size_t len, bool ascii_only) {
    const unsigned char *at = (const unsigned char *)text, *end = at + len, *plain = at;
    add(out, "\"");
    for (; at < end; at++) {
        if (*at >= 0x20 && *at != '"' && *at != '\\' && *at != 0xED && !(ascii_only && *at >= 0x7F)) {
            continue;
        }
        if (*at == 0xED && !ascii_only) {
            if (end - at > 1 && at[1] >= 0xA0) {
                mp_raise_ValueError(MP_ERROR_TEXT("JSON has no form for half of a surrogate pair (\\ud800 to \\udfff)"));
            }
            continue;
        }
        buffer_add(out, (const char *)plain, at - plain);
        switch (*at) {
            case '"': add(out, "\\\""); break;
            case '\\': add(out, "\\\\"); break;
            case '\n': add(out, "\\n"); break;
            case '\r': add(out, "\\r"); break;
            case '\t': add(out, "\\t"); break;
            case '\b': add(out, "\\b"); break;
            case '\f': add(out, "\\f"); break;
            default:
                if (*at < 0x80) {
                    write_escaped(out, *at);
                } else {
                    at = write_character(out, at);
                }
        }
        plain = at + 1;
    }
    buffer_add(out, (const char *)plain, end - plain);
    add(out, "\"");
}

void json_write_text(buffer_t *out, const char *text, size_t len) {
    write_text(out, text, len, false);
}

static void write_value(buffer_t *out, mp_obj_t value, const json_style_t *style, int level);

// A tuple, or one with names.
static bool is_tuple(mp_obj_t value) {
    return MP_OBJ_TYPE_GET_SLOT_OR_NULL(mp_obj_get_type(value), iter) == mp_obj_tuple_getiter;
}

static void write_number(buffer_t *out, mp_obj_t number) {
    if (mp_obj_is_float(number) && !isfinite(mp_obj_float_get(number))) {
        mp_raise_msg_varg(&mp_type_ValueError, MP_ERROR_TEXT("JSON has no form for the number %q"),
            isnan(mp_obj_float_get(number)) ? MP_QSTR_nan : MP_QSTR_inf);
    }
    mp_print_t print = {out, print_into};
    mp_obj_print_helper(&print, number, PRINT_REPR);
}

static void write_key(buffer_t *out, mp_obj_t key, const json_style_t *style) {
    if (mp_obj_is_str(key)) {
        write_value(out, key, style, 0);
    } else if (mp_obj_is_int(key) || mp_obj_is_float(key) || mp_obj_is_bool(key) || key == mp_const_none) {
        add(out, "\"");  // as ordinary Python writes it
        write_value(out, key, style, 0);
        add(out, "\"");
    } else {
        mp_raise_msg_varg(&mp_type_TypeError, MP_ERROR_TEXT("a key of JSON is text, found %s"), mp_obj_get_type_str(key));
    }
}

static void write_dict(buffer_t *out, mp_obj_t dict, const json_style_t *style, int level) {
    mp_map_t *map = mp_obj_dict_get_map(dict);
    const char *before = "{";
    for (size_t i = 0; i < map->alloc; i++) {
        if (mp_map_slot_is_filled(map, i)) {
            add(out, before);
            write_key(out, map->table[i].key, style);
            add(out, style->after_key);
            write_value(out, map->table[i].value, style, level);
            before = style->between;
        }
    }
    add(out, map->used == 0 ? "{}" : "}");
}

static void write_list(buffer_t *out, mp_obj_t list, const json_style_t *style, int level) {
    size_t len;
    mp_obj_t *items;
    if (mp_obj_is_type(list, &mp_type_list)) {
        mp_obj_list_get(list, &len, &items);
    } else {
        mp_obj_tuple_get(list, &len, &items);
    }
    add(out, "[");
    for (size_t i = 0; i < len; i++) {
        if (i > 0) {
            add(out, style->between);
        }
        write_value(out, items[i], style, level);
    }
    add(out, "]");
}

static void write_value(buffer_t *out, mp_obj_t value, const json_style_t *style, int level) {
    if (level > MOST_LEVELS) {
        mp_raise_ValueError(MP_ERROR_TEXT("too deeply nested for JSON, or it holds itself"));
    }
    if (value == mp_const_none) {
        add(out, "null");
    } else if (value == mp_const_true) {
        add(out, "true");
    } else if (value == mp_const_false) {
        add(out, "false");
    } else if (mp_obj_is_str(value)) {
        size_t len;
        const char *text = mp_obj_str_get_data(value, &len);
        write_text(out, text, len, style->ascii_only);
    } else if (mp_obj_is_int(value) || mp_obj_is_float(value)) {
        write_number(out, value);
    } else if (mp_obj_is_dict_or_ordereddict(value)) {
        write_dict(out, value, style, level + 1);
    } else if (mp_obj_is_type(value, &mp_type_list) || is_tuple(value)) {
        write_list(out, value, style, level + 1);
    } else {
        // An object of a class that an author derived from one of these, such as a Counter.
        const mp_obj_type_t *bases[] = {&mp_type_dict, &mp_type_ordereddict, &mp_type_list, &mp_type_str};
        for (size_t i = 0; i < MP_ARRAY_SIZE(bases); i++) {
            mp_obj_t native = mp_obj_cast_to_native_base(value, MP_OBJ_FROM_PTR(bases[i]));
            if (native != MP_OBJ_NULL && native != value) {
                write_value(out, native, style, level);
                return;
            }
        }
        mp_raise_msg_varg(&mp_type_TypeError, MP_ERROR_TEXT("JSON has no form for a value of type %s"), mp_obj_get_type_str(value));
    }
}

void json_write(buffer_t *out, mp_obj_t value, const json_style_t *style) {
    write_value(out, value, style, 0);
}
