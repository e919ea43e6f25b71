#include "host/guest/guest.h"
