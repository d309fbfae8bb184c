// Text that is not ASCII: its letters, its cases and its white space. See text.h.
#include <string.h>
#include <wctype.h>

#include "py/objlist.h"
#include "py/objstr.h"
#include "py/runtime.h"
#include "py/unicode.h"
#include "text.h"

bool text_is_ascii(const byte *text, size_t len) {
    for (; len >= 4; text += 4, len -= 4) {
        uint32_t four;
        memcpy(&four, text, 4);
        if (four & 0x80808080) {
            return false;
        }
    }
    for (; len > 0; text++, len--) {
        if (*text & 0x80) {
            return false;
        }
    }
    return true;
}

bool character_is_space(uint32_t c) {
    if (c < 0x80) {
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
    }
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F
        || c == 0x205F || c == 0x3000;
}

static bool is_alpha(uint32_t c) {
    return c < 0x80 ? (c | 32) - 'a' < 26 : iswalpha(c) != 0;
}

bool character_is_word(uint32_t c) {
    return is_alpha(c) || c - '0' < 10 || c == '_';
}

uint32_t character_in_case(bool is_upper, uint32_t c) {
    if (c < 0x80) {
        return (is_upper ? c - 'a' : c - 'A') < 26 ? c ^ 32 : c;
    }
    return is_upper ? towupper(c) : towlower(c);
}

bool text_is(text_kind_t kind, const byte *text, size_t len) {
    bool has_case = false;
    for (const byte *at = text, *end = text + len; at < end; at = utf8_next_char(at)) {
        uint32_t c = utf8_get_char(at);
        switch (kind) {
            case TEXT_ALPHA:
                if (!is_alpha(c)) {
                    return false;
                }
                break;
            case TEXT_SPACE:
                if (!character_is_space(c)) {
                    return false;
                }
                break;
            default: {
                bool has_upper = character_in_case(true, c) != c, has_lower = character_in_case(false, c) != c;
                if (kind == TEXT_UPPER ? has_upper : has_lower) {
                    return false;
                }
                has_case |= has_upper || has_lower;
            }
        }
    }
    return kind == TEXT_ALPHA || kind == TEXT_SPACE ? len > 0 : has_case;
}

mp_obj_t text_in_case(bool is_upper, const byte *text, size_t len) {
    vstr_t changed;
    vstr_init(&changed, len + 1);
    for (const byte *at = text, *end = text + len; at < end; at = utf8_next_char(at)) {
        uint32_t c = utf8_get_char(at);
        if (is_upper && c == 0xDF) {  // ß, the one letter in wide use whose capital is two
            vstr_add_str(&changed, "SS");
        } else {
            vstr_add_char(&changed, character_in_case(is_upper, c));
        }
    }
    return mp_obj_new_str_from_utf8_vstr(&changed);
}

mp_obj_t text_split(const byte *text, size_t len, mp_int_t splits) {
    mp_obj_t parts = mp_obj_new_list(0, NULL);
    const byte *end = text + len, *begin = NULL;  // of the part that is being read
    for (const byte *at = text; at < end;) {
        uint32_t c = *at;
        const byte *next = at + 1;
        if (c >= 0x80) {
            c = utf8_get_char(at);
            next = utf8_next_char(at);
        }
        bool is_space = character_is_space(c);
        if (begin == NULL && !is_space) {
            begin = at;
            if (splits == 0) {
                break;
            }
        } else if (begin != NULL && is_space) {
            mp_obj_list_append(parts, mp_obj_new_str_copy(&mp_type_str, begin, at - begin));
            begin = NULL;
            splits -= splits > 0;
        }
        at = next;
    }
    if (begin != NULL) {
        mp_obj_list_append(parts, mp_obj_new_str_copy(&mp_type_str, begin, end - begin));
    }
    return parts;
}

static bool is_stripped(const byte *at, mp_obj_t characters) {
    uint32_t c = utf8_get_char(at);
    if (characters == MP_OBJ_NULL) {
        return character_is_space(c);
    }
    GET_STR_DATA_LEN(characters, text, len);
    for (const byte *one = text, *end = text + len; one < end; one = utf8_next_char(one)) {
        if (utf8_get_char(one) == c) {
            return true;
        }
    }
    return false;
}

mp_obj_t text_strip(text_side_t side, mp_obj_t whole, mp_obj_t characters) {
    GET_STR_DATA_LEN(whole, text, len);
    const byte *begin = text, *end = text + len;
    if (side != TEXT_STRIP_RIGHT) {
        while (begin < end && is_stripped(begin, characters)) {
            begin = utf8_next_char(begin);
        }
    }
    if (side != TEXT_STRIP_LEFT) {
        while (begin < end) {
            const byte *last = end - 1;
            while (last > begin && UTF8_IS_CONT(*last)) {
                last--;
            }
            if (!is_stripped(last, characters)) {
                break;
            }
            end = last;
        }
    }
    return (size_t)(end - begin) == len ? whole : mp_obj_new_str((const char *)begin, end - begin);
}

size_t text_prefix(const char *text, size_t len, size_t characters) {
    const byte *at = (const byte *)text, *end = at + len;
    while (at < end && characters-- > 0) {
        at = utf8_next_char(at);
    }
    return at - (const byte *)text;
}
