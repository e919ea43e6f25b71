#include "mux/mux.h"
