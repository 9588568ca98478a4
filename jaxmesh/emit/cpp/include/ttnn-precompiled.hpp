// The ttnn API that emitted C++ calls, run on the host: header-only, standard C++20.
#pragma once

#include "ttnn-ccl.hpp"
#include "ttnn-creation.hpp"
#include "ttnn-distributed.hpp"
#include "ttnn-elementwise.hpp"
#include "ttnn-files.hpp"
#include "ttnn-images.hpp"
#include "ttnn-indexing.hpp"
#include "ttnn-linear.hpp"
#include "ttnn-neural.hpp"
#include "ttnn-random.hpp"
#include "ttnn-reductions.hpp"
#include "ttnn-shapes.hpp"
