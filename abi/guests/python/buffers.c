// Buffers that grow and are used again: memory stays flat however many steps a block takes.
#include <stdlib.h>
#include <string.h>

#include "py/runtime.h"
#include "guest.h"

static bool resize(buffer_t *buffer, size_t capacity) {
    char *data = realloc(buffer->data, capacity);
    if (data == NULL) {
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

bool buffer_reserve(buffer_t *buffer, size_t capacity) {
    if (capacity <= buffer->capacity) {
        return true;
    }
    free(buffer->data);  // nobody needs the old content, and copying it would need room for both
    *buffer = (buffer_t) {NULL, 0, 0};
    return resize(buffer, capacity);
}

void buffer_add(buffer_t *buffer, const char *data, size_t len) {
    size_t needed = buffer->len + len;
    if (needed > buffer->capacity && !resize(buffer, needed + needed / 2) && !resize(buffer, needed)) {
        m_malloc_fail(needed);
    }
    memcpy(buffer->data + buffer->len, data, len);
    buffer->len = needed;
}
