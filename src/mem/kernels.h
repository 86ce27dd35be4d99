/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEM_KERNELS_H
#define MEM_KERNELS_H

/* The compiled kernels of kernels/, as the driver loads them. NULL: this build has none. */
const void *kernels_image(void);

#endif
