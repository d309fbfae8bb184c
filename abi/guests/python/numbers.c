// Floating point numbers from text and to text, exactly: what is written reads as the same number, in as few digits as that takes, as
// in ordinary Python. MicroPython's own is off by a bit here and there, and writes 0.1 + 0.2 as 0.3. Called from patches in
// scripts/build-python-guest.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

#define MOST_DIGITS 1024  // of a number written in full; for longer ones `otherwise` is near enough

double number_read(const char *text, size_t len, double otherwise) {
    char digits[MOST_DIGITS + 1];
    size_t kept = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] != '_') {
            if (kept == MOST_DIGITS) {
                return otherwise;
            }
            digits[kept++] = text[i];
        }
    }
    digits[kept] = '\0';
    return strtod(digits, NULL);
}

void number_write(double number, char *text, size_t size) {
    int precision = 14;
    do {
        snprintf(text, size, "%.*g", ++precision, number);
    } while (precision < 17 && strtod(text, NULL) != number);
    // Python writes numbers below 1e16 in full and larger ones with an exponent; C decides by the digits that it was asked for.
    const char *exponent = strchr(text, 'e');
    if (exponent != NULL && fabs(number) >= 1 && fabs(number) < 1e16) {
        snprintf(text, size, "%.0f", number);
    } else if (exponent == NULL && isfinite(number) && fabs(number) >= 1e16) {
        snprintf(text, size, "%.*e", precision - 1, number);
    }
}
