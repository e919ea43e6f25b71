#include "host/vm/vm.h"
