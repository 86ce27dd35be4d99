/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_GPU_WORD_H
#define CORE_GPU_WORD_H

#include <wimm/status.h>

/* Whether words can be had for kernels of a device: OK, E_INVAL, E_UNSUPPORTED; the text is set. */
wimm_status gpu_device_check(int device);

#endif
