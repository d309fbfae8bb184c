// Floating point numbers from text and to text, exactly: what is written reads as the same number, in as few digits as that takes, as
// in ordinary Python. MicroPython's own is off by a bit here and there, writes 0.1 + 0.2 as 0.3 and rounds 0.015 to 0.02. Called from
// patches.py.
#include <float.h>
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

// Above a power of two there is twice as much room as below: then the digits that read as the number need not be the nearest ones. Writes
// those with the last one counted up if that reads as `number`. (Such a power has an exponent: the others are exact in 15 digits.)
static bool next_reads_as(double number, char *text, size_t size, int precision) {
    int exponent;
    char digits[32];
    if (frexp(fabs(number), &exponent) != 0.5) {
        return false;
    }
    snprintf(digits, sizeof digits, "%.*e", precision - 1, number);
    char *last = strchr(digits, 'e') - 1;
    if (*last == '9') {
        return false;
    }
    ++*last;
    if (strtod(digits, NULL) != number) {
        return false;
    }
    snprintf(text, size, "%s", digits);
    return true;
}

void number_write(double number, char *text, size_t size) {
    int precision = fabs(number) < DBL_MIN ? 0 : 14;  // below it numbers have fewer digits
    do {
        snprintf(text, size, "%.*g", ++precision, number);
    } while (precision < 17 && strtod(text, NULL) != number && !next_reads_as(number, text, size, precision));
    // Python writes numbers below 1e16 in full and larger ones with an exponent; C decides by the digits that it was asked for.
    const char *exponent = strchr(text, 'e');
    if (exponent != NULL && fabs(number) >= 1 && fabs(number) < 1e16) {
        snprintf(text, size, "%.0f", number);
    } else if (exponent == NULL && isfinite(number) && fabs(number) >= 1e16) {
        snprintf(text, size, "%.*e", precision - 1, number);
    }
}

double number_round(double number, int digits) {
    if (!isfinite(number) || digits > 323) {
        return number;
    }
    if (digits >= 0) {  // C rounds the number's exact value, halves to even, as Python does
        char text[NUMBER_BYTES];
        snprintf(text, sizeof text, "%.*f", digits, number);
        return strtod(text, NULL);
    }
    if (digits < -308) {
        return copysign(0, number);
    }
    double unit = pow(10, -digits), rest = fmod(number, unit), whole = number - rest;  // both exact
    bool is_up = fabs(rest) > unit / 2 || (fabs(rest) == unit / 2 && fmod(whole, 2 * unit) != 0);
    return copysign(is_up ? whole + copysign(unit, number) : whole, number);
}

// As 'g' does it, but with at least one digit behind the point, and so with an exponent one digit earlier.
static void format_without_form(double number, char *text, size_t size, int precision) {
    if (precision == 0) {
        precision = 1;
    }
    snprintf(text, size, "%.*e", precision - 1, number);
    char *exponent = strchr(text, 'e');
    if (exponent == NULL) {
        return;
    }
    int power = atoi(exponent + 1);
    char last[8] = "";
    if (power < -4 || power >= precision - 1) {
        strcpy(last, exponent);
        *exponent = '\0';
    } else {
        snprintf(text, size, "%.*f", precision - 1 - power, number);
    }
    if (strchr(text, '.') != NULL) {
        char *end = text + strlen(text);
        while (end[-1] == '0') {
            *--end = '\0';
        }
        if (end[-1] == '.') {
            strcpy(end - (*last != '\0'), *last != '\0' ? "" : "0");
        }
    }
    strcat(text, last);
}

static void group_thousands(char *text) {
    size_t digits = strspn(text, "0123456789");
    for (size_t at = digits; at > 3;) {
        at -= 3;
        memmove(text + at + 1, text + at, strlen(text + at) + 1);
        text[at] = ',';
    }
}

int number_format(double number, char *text, size_t size, char form, int precision, char sign, bool is_grouped) {
    if (precision > (int)size / 2) {
        return 0;
    }
    char *at = text;
    if (signbit(number) && !isnan(number)) {
        *at++ = '-';
    } else if (sign != '\0') {
        *at++ = sign;
    }
    number = fabs(number);
    size -= at - text;
    if (form == 'r') {
        number_write(number, at, size);
        if (isfinite(number) && strpbrk(at, ".e") == NULL) {
            strcat(at, ".0");
        }
    } else if (form == 'q') {
        format_without_form(number, at, size, precision);
    } else {
        char pattern[] = {'%', '.', '*', form, '\0'};
        snprintf(at, size, pattern, precision < 0 ? 6 : precision, number);
    }
    if (is_grouped) {
        group_thousands(at);
    }
    return strlen(text);
}
