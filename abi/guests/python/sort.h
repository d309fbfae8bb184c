#include <stdbool.h>

#include "py/objlist.h"

void stable_sort(mp_obj_list_t *list, mp_obj_t key, bool backwards);
