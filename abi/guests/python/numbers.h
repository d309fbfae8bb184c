#include <stddef.h>

double number_read(const char *text, size_t len, double otherwise);  // `text` is a decimal number, perhaps with _ between its digits
void number_write(double number, char *text, size_t size);
