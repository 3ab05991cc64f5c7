// The prelude without mathematical functions and reductions, whose parsing is a tenth of a small graph's compile time.
#pragma once
#define PYC_SMALL
#include "pyc_prelude.h"
