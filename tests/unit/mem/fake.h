/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_MEM_FAKE_H
#define TESTS_UNIT_MEM_FAKE_H

/* The driver of tests/fake, loaded into this process as a program that uses CUDA would have it. */

#include "fake/cuda.h"

#include "base/config.h"

#include <dlfcn.h>
#include <string.h>

static struct fake_cuda_knobs *fake_cuda_start(void)
{
	char path[CONFIG_TEXT_BYTES];
	void *handle;

	config_get_text(CFG_CUDA_LIBRARY, path); /* the test's environment names it */
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	return handle != NULL ? dlsym(handle, FAKE_CUDA_KNOBS) : NULL;
}

#endif
