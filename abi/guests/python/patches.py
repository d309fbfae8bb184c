"""What is changed in MicroPython's source. `scripts/build-python-guest` reads it.

A change names a place by as little of the text there as is needed, which must stand in the file once:

    ("after", PLACE, NEW)              NEW comes behind it
    ("before", PLACE, NEW)             NEW comes before it
    ("instead", PLACE, NEW)            NEW takes its place
    ("through", FIRST, LAST, NEW)      NEW takes the place of all from FIRST to the next LAST

Where a value differed from Python's without an error, it is made the same or made an error.
"""

# ruff: noqa: E501  # the text of another project

PATCHES = {
    "py/gc.c": [
        # Upstream frees a piece of the heap whose only live object is its block 0: lists lose entries, dicts break. (1.25.0; 1.26.1 too.)
        (
            "before",
            "prev_area != NULL) {",
            "ATB_GET_KIND(area, 0) == AT_FREE && ",
        ),
        # A heap that cannot be doubled any more grows by less.
        (
            "instead",
            "    mp_state_mem_area_t *new_heap = MP_PLAT_ALLOC_HEAP(to_alloc);\n",
            "    mp_state_mem_area_t *new_heap;\n"
            "    while ((new_heap = MP_PLAT_ALLOC_HEAP(to_alloc)) == NULL && to_alloc > needed) {\n"
            "        to_alloc = MAX(needed, to_alloc / 2);\n"
            "    }\n",
        ),
    ],
    "py/objstr.c": [
        (
            "after",
            '#include "py/objstr.h"\n',
            '#include "text.h"\n',
        ),
        # Pieces of a text are not looked up among the interned names: splitting takes half the time.
        (
            "before",
            ") {\n        return mp_obj_new_str((const char *)data, len);",
            " && len > 1) {\n        return mp_obj_new_str_copy(type, data, len);\n    } else if (type == &mp_type_str",
        ),
        # Characters, and not bytes, where text is not ASCII (text.c).
        (
            "before",
            "    if (sep == mp_const_none) {\n        // sep not given, so separate on whitespace\n",
            "    if (sep == mp_const_none && self_type == &mp_type_str && !text_is_ascii(s, len)) {\n"
            "        return text_split(s, len, splits);\n"
            "    }\n",
        ),
        (
            "before",
            "    const byte *chars_to_del;\n",
            "    if (self_type == &mp_type_str) {\n"
            "        if (n_args > 1) {\n"
            "            str_check_arg_type(self_type, args[1]);\n"
            "        }\n"
            "        return text_strip(type == LSTRIP ? TEXT_STRIP_LEFT : type == RSTRIP ? TEXT_STRIP_RIGHT : TEXT_STRIP_BOTH,\n"
            "            args[0], n_args > 1 ? args[1] : MP_OBJ_NULL);\n"
            "    }\n",
        ),
        (
            "before",
            "    vstr_t vstr;\n    vstr_init_len(&vstr, self_len);\n",
            "    if (mp_obj_is_str(self_in) && !text_is_ascii(self_data, self_len)) {\n"
            "        return text_in_case(op == unichar_toupper, self_data, self_len);\n"
            "    }\n",
        ),
        (
            "before",
            "    if (f != unichar_isupper && f != unichar_islower) {\n",
            "    if (mp_obj_is_str(self_in) && f != unichar_isdigit && !text_is_ascii(self_data, self_len)) {\n"
            "        text_kind_t kind = f == unichar_isalpha ? TEXT_ALPHA : f == unichar_isspace ? TEXT_SPACE\n"
            "            : f == unichar_isupper ? TEXT_UPPER : TEXT_LOWER;\n"
            "        return mp_obj_new_bool(text_is(kind, self_data, self_len));\n"
            "    }\n",
        ),
        (
            "instead",
            "    mp_uint_t width = mp_obj_get_int(width_in);\n    if (str_len >= width) {\n",
            "    mp_int_t width = mp_obj_get_int(width_in) + (mp_int_t)str_len - (mp_int_t)utf8_charlen(str, str_len);\n"
            "    if ((mp_int_t)str_len >= width) {\n",
        ),
        (
            "instead",
            "    int left = (width - str_len) / 2;\n",
            "    int pad = width - str_len, left = pad / 2 + (pad & mp_obj_get_int(width_in) & 1);\n",
        ),
        (
            "through",
            "                    if (slen > (size_t)precision) {\n",
            "                    }\n",
            "                    slen = text_prefix(s, slen, precision);\n",
        ),
        (
            "through",
            "                if (vlen > (uint)prec) {\n",
            "                }\n",
            "                vlen = is_bytes ? MIN(vlen, (uint)prec) : text_prefix(arg_vstr.buf, vlen, prec);\n",
        ),
        # Encodings and error handlers count (codecs.c).
        (
            "instead",
            "            // TODO: validate 2nd/3rd args\n",
            "            if (!codec_is_usual(n_args, args)) {\n                return codec_decode(n_args, args);\n            }\n",
        ),
        (
            "instead",
            "                    mp_raise_msg(&mp_type_UnicodeError, NULL);\n",
            "                    codec_refuse_utf8(str_data, str_len);\n",
        ),
        (
            "after",
            '            mp_raise_TypeError(MP_ERROR_TEXT("string argument without an encoding"));\n            #endif\n',
            "        }\n        if (!codec_is_usual(n_args, args)) {\n            return codec_encode(n_args, args);\n",
        ),
        # A number's format without a letter, such as "{:,}" (numbers.c).
        (
            "instead",
            "                type = 'g';\n            }\n            if (type == 'n')",
            "                type = precision < 0 ? 'r' : 'q';\n            }\n            if (type == 'n')",
        ),
        (
            "before",
            "                    mp_print_float(&print, mp_obj_get_float(arg), type,",
            "                case 'r':\n                case 'q':\n",
        ),
    ],
    "py/mpprint.c": [
        (
            "after",
            '#include "py/mpprint.h"\n',
            '#include "py/runtime.h"\n#include "py/unicode.h"\n#include "numbers.h"\n',
        ),
        # A width counts characters.
        (
            "instead",
            "    int pad = width - len;\n",
            "    int pad = width - (int)utf8_charlen((const byte *)str, len);\n",
        ),
        # Numbers are rounded as in Python, and 1e25 has all its digits (numbers.c).
        (
            "instead",
            "    char buf[32];\n",
            "    char buf[NUMBER_BYTES];\n",
        ),
        (
            "instead",
            "    int len = mp_format_float(f, buf, sizeof(buf), fmt, prec, sign);\n",
            "    int len = number_format(f, buf, sizeof(buf), fmt, prec, sign, flags & PF_FLAG_SHOW_COMMA);\n"
            "    if (len == 0) {\n"
            '        mp_raise_ValueError(MP_ERROR_TEXT("precision too big"));\n'
            "    }\n",
        ),
    ],
    "py/modbuiltins.c": [
        (
            "after",
            '#include "py/builtin.h"\n',
            '#include "numbers.h"\n',
        ),
        (
            "through",
            "    if (n_args > 1) {\n        mp_int_t num_dig = mp_obj_get_int(args[1]);\n",
            "        return mp_obj_new_float(rounded);\n",
            "    if (n_args > 1 && args[1] != mp_const_none) {\n"
            "        return mp_obj_new_float(number_round(val, mp_obj_get_int(args[1])));\n",
        ),
    ],
    "py/objdict.c": [
        # Dicts keep their order (ordered_map.c): the last entry is the one that popitem takes.
        (
            "through",
            "    size_t cur = 0;\n    #if MICROPY_PY_COLLECTIONS_ORDEREDDICT\n",
            "    #endif\n",
            "    size_t cur = self->map.alloc;\n    while (!mp_map_slot_is_filled(&self->map, --cur)) {\n    }\n",
        ),
        # A dict that changes while a loop goes through it is an error; such a loop may not end.
        (
            "through",
            "    mp_dict_view_kind_t kind;\n    mp_obj_t dict;\n    size_t cur;\n",
            "} mp_obj_dict_view_it_t;",
            "    uint32_t kind : 2;\n"
            "    uint32_t size : 30;  // of the dict\n"
            "    mp_obj_t dict;\n"
            "    size_t cur;\n"
            "} mp_obj_dict_view_it_t;",
        ),
        (
            "after",
            "    o->kind = view->kind;\n",
            "    o->size = mp_obj_dict_get_map(view->dict)->used;\n",
        ),
        (
            "after",
            "    o->kind = MP_DICT_VIEW_KEYS;\n",
            "    o->size = mp_obj_dict_get_map(self_in)->used;\n",
        ),
        (
            "before",
            "    mp_map_elem_t *next = dict_iter_next(MP_OBJ_TO_PTR(self->dict), &self->cur);\n",
            "    if (self->size != mp_obj_dict_get_map(self->dict)->used) {\n"
            '        mp_raise_msg(&mp_type_RuntimeError, MP_ERROR_TEXT("dictionary changed size during iteration"));\n'
            "    }\n",
        ),
        # dict(x) where x is of a class that an author derived from dict, such as a Counter.
        (
            "before",
            "if (mp_obj_is_dict_or_ordereddict(args[1])) {\n",
            "mp_obj_t native = mp_obj_cast_to_native_base(args[1], MP_OBJ_FROM_PTR(&mp_type_dict));\n"
            "        if (!mp_obj_is_dict_or_ordereddict(args[1]) && native != MP_OBJ_NULL) {\n"
            "            mp_obj_t both[2] = {args[0], native};\n"
            "            dict_update(2, both, (mp_map_t *)&mp_const_empty_map);\n"
            "        } else ",
        ),
        (
            "instead",
            "            if (mp_obj_is_type(rhs_in, &mp_type_dict)) {\n",
            "            CHECK_DEPTH();\n            if (mp_obj_is_dict_or_ordereddict(rhs_in)) {\n",
        ),
        (
            "after",
            '#include "py/builtin.h"\n',
            '#include "depth.h"\n',
        ),
    ],
    # Data and code that are nested too deeply end in an exception (depth.h).
    "py/obj.c": [
        (
            "instead",
            '#include "py/cstack.h"\n',
            '#include "depth.h"\n',
        ),
        (
            "instead",
            "    mp_cstack_check();\n",
            "    CHECK_DEPTH();\n",
        ),
    ],
    "py/sequence.c": [
        (
            "after",
            '#include "py/runtime.h"\n',
            '#include "depth.h"\n',
        ),
        (
            "after",
            "bool mp_seq_cmp_objs(mp_uint_t op, const mp_obj_t *items1, size_t len1, const mp_obj_t *items2, size_t len2) {\n",
            "    CHECK_DEPTH();\n",
        ),
    ],
    "py/objtuple.c": [
        (
            "after",
            '#include "py/runtime.h"\n',
            '#include "depth.h"\n',
        ),
        (
            "before",
            "            // start",
            "            CHECK_DEPTH();\n",
        ),
    ],
    "py/compile.c": [
        (
            "after",
            '#include "py/compile.h"\n',
            '#include "depth.h"\n',
        ),
        (
            "after",
            "static void compile_node(compiler_t *comp, mp_parse_node_t pn) {\n",
            "    CHECK_DEPTH();\n",
        ),
    ],
    "py/objgenerator.c": [
        # The lines at which a generator raised StopIteration are told.
        (
            "instead",
            '                *ret_val = mp_obj_new_exception_msg(&mp_type_RuntimeError, MP_ERROR_TEXT("generator raised StopIteration"));\n',
            "                mp_obj_t stopped = *ret_val;\n"
            "                size_t len, *lines;\n"
            "                mp_obj_exception_get_traceback(stopped, &len, &lines);\n"
            '                *ret_val = mp_obj_new_exception_msg(&mp_type_RuntimeError, MP_ERROR_TEXT("generator raised StopIteration"));\n'
            "                for (size_t i = 0; i + 2 < len; i += 3) {\n"
            "                    mp_obj_exception_add_traceback(*ret_val, lines[i], lines[i + 1], lines[i + 2]);\n"
            "                }\n",
        ),
    ],
    # Sorting leaves equal items in their order (sort.c).
    "py/objlist.c": [
        (
            "after",
            '#include "py/objlist.h"\n',
            '#include "sort.h"\n',
        ),
        (
            "through",
            "        mp_quicksort(self->items, self->items + self->len - 1,\n",
            "            args.reverse.u_bool ? mp_const_false : mp_const_true);\n",
            "        stable_sort(self, args.key.u_obj, args.reverse.u_bool);\n",
        ),
    ],
    # Floating point numbers are read and written exactly (numbers.c).
    "py/parsenum.c": [
        (
            "after",
            '#include "py/parsenum.h"\n',
            '#include "numbers.h"\n',
        ),
        (
            "instead",
            "    // negate value if needed\n    if (dec_neg) {",
            "    dec_val = number_read(str_val_start, str - str_val_start, dec_val);\n    if (dec_neg) {",
        ),
    ],
    "py/objfloat.c": [
        (
            "after",
            '#include "py/parsenum.h"\n',
            '#include "numbers.h"\n',
        ),
        (
            "instead",
            "mp_format_float(o_val, buf, sizeof(buf), 'g', precision, '\\0');",
            "number_write(o_val, buf, sizeof(buf));",
        ),
        (
            "before",
            "            lhs_val = MICROPY_FLOAT_C_FUN(pow)(lhs_val, rhs_val);\n",
            "            if (isfinite(lhs_val) && isfinite(rhs_val) && isinf(pow(lhs_val, rhs_val))) {\n"
            '                mp_raise_msg(&mp_type_OverflowError, MP_ERROR_TEXT("Numerical result out of range"));\n'
            "            }\n",
        ),
    ],
    "py/objint.c": [
        (
            "before",
            "\n    vstr_t vstr;\n",
            "    if (mp_obj_int_sign(args[0]) < 0) {\n"
            '        mp_raise_msg(&mp_type_OverflowError, MP_ERROR_TEXT("can\'t convert negative int to unsigned"));\n'
            "    }\n",
        ),
    ],
    "py/objint_mpz.c": [
        (
            "before",
            "        mpz_t *mod",
            "        if (mpz_is_neg(rhs)) {\n"
            '            mp_raise_ValueError(MP_ERROR_TEXT("pow() of three numbers has no negative exponents here"));\n'
            "        }\n",
        ),
    ],
    # True and False are of the class int.
    "py/objtype.c": [
        (
            "instead",
            "        if (items[i] == MP_OBJ_FROM_PTR(&mp_type_object) || mp_obj_is_subclass_fast(object, items[i])) {\n",
            "        bool is_bool = object == MP_OBJ_FROM_PTR(&mp_type_bool) && items[i] == MP_OBJ_FROM_PTR(&mp_type_int);\n"
            "        if (is_bool || items[i] == MP_OBJ_FROM_PTR(&mp_type_object) || mp_obj_is_subclass_fast(object, items[i])) {\n",
        ),
    ],
    # In Python's words.
    "py/pystack.c": [
        (
            "instead",
            "MP_QSTR_pystack_space_exhausted",
            "MP_QSTR_maximum_space_recursion_space_depth_space_exceeded",
        ),
    ],
}
