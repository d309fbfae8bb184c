// What text does where it is not ASCII, and its encodings: called from patches.py in place of MicroPython's own, which take bytes for
// characters.
#include "py/obj.h"

typedef enum { TEXT_ALPHA, TEXT_SPACE, TEXT_UPPER, TEXT_LOWER } text_kind_t;
typedef enum { TEXT_STRIP_LEFT, TEXT_STRIP_RIGHT, TEXT_STRIP_BOTH } text_side_t;

bool text_is_ascii(const byte *text, size_t len);
bool text_is(text_kind_t kind, const byte *text, size_t len);                       // all of it, and something of it
mp_obj_t text_in_case(bool is_upper, const byte *text, size_t len);
mp_obj_t text_split(const byte *text, size_t len, mp_int_t splits);                 // at white space; splits < 0: at all of it
mp_obj_t text_strip(text_side_t side, mp_obj_t text, mp_obj_t characters);          // characters NULL: white space
size_t text_prefix(const char *text, size_t len, size_t characters);                // the bytes of that many characters
bool character_is_word(uint32_t c);
bool character_is_space(uint32_t c);
uint32_t character_in_case(bool is_upper, uint32_t c);

// bytes.decode and str.encode, with the arguments of str(bytes, encoding, errors) and bytes(text, encoding, errors).
bool codec_is_usual(size_t arg_count, const mp_obj_t *args);                        // UTF-8, strict: MicroPython does that itself
mp_obj_t codec_decode(size_t arg_count, const mp_obj_t *args);
mp_obj_t codec_encode(size_t arg_count, const mp_obj_t *args);
void codec_refuse_utf8(const byte *text, size_t len);                               // raises the UnicodeError for bytes that are none
