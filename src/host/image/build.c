#include "host/image/build.h"
