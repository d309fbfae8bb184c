#include <stdbool.h>
#include <stddef.h>

#define NUMBER_BYTES 1536  // room for the longest that `number_format` writes

double number_read(const char *text, size_t len, double otherwise);  // `text` is a decimal number, perhaps with _ between its digits
void number_write(double number, char *text, size_t size);
double number_round(double number, int digits);                      // as round(number, digits)

// As a format such as ".2f" or ",.0f" writes it. `form` is one of e, f, g in either case, 'r' for no form and 'q' for no form but a
// precision; `precision` below 0 is the usual one. Gives the length, or 0 when the precision is more than there is room for.
int number_format(double number, char *text, size_t size, char form, int precision, char sign, bool is_grouped);
