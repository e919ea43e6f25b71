#include "wire/guest.h"
