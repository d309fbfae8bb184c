// Sorting, in the place of MicroPython's, which changes the order of items that are equal. A merge sort; keys are computed once, and
// an exception on the way leaves the list as it was.
#include <string.h>

#include "py/cstack.h"
#include "py/runtime.h"
#include "sort.h"

typedef struct {
    mp_obj_t key, item;
} entry_t;

static bool is_less(mp_obj_t left, mp_obj_t right) {
    return mp_obj_is_true(mp_binary_op(MP_BINARY_OP_LESS, left, right));
}

// Sort `len` entries; `other` has room for as many. `backwards` puts the larger first, and equal ones still as they came.
static void merge_sort(entry_t *entries, entry_t *other, size_t len, bool backwards) {
    mp_cstack_check();
    if (len < 2) {
        return;
    }
    size_t middle = len / 2, left = 0, right = middle, at = 0;
    merge_sort(entries, other, middle, backwards);
    merge_sort(entries + middle, other, len - middle, backwards);
    while (left < middle && right < len) {
        bool take_right = backwards ? is_less(entries[left].key, entries[right].key) : is_less(entries[right].key, entries[left].key);
        other[at++] = entries[take_right ? right++ : left++];
    }
    memcpy(other + at, entries + left, (middle - left) * sizeof(entry_t));  // what is left on the right is in its place
    memcpy(entries, other, (at + middle - left) * sizeof(entry_t));
}

void stable_sort(mp_obj_list_t *list, mp_obj_t key, bool backwards) {
    size_t len = list->len;
    entry_t *entries = m_new(entry_t, 2 * len);
    for (size_t i = 0; i < len; i++) {
        entries[i] = (entry_t) {list->items[i], list->items[i]};
    }
    for (size_t i = 0; i < len && key != mp_const_none; i++) {
        entries[i].key = mp_call_function_1(key, entries[i].item);
    }
    merge_sort(entries, entries + len, len, backwards);
    if (list->len != len) {
        mp_raise_ValueError(MP_ERROR_TEXT("list modified during sort"));
    }
    for (size_t i = 0; i < len; i++) {
        list->items[i] = entries[i].item;
    }
    m_del(entry_t, entries, 2 * len);
}
