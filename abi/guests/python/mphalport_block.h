// There is no hardware, so nothing is to be said about it; MicroPython includes this file all the same.
#define mp_hal_pin_obj_t
