// The prelude without mathematical functions and reductions.  Parsing these takes a tenth of a small graph's compile
// time.
#pragma once
#define PYC_SMALL
#include "pyc_prelude.h"
