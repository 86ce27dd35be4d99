/* SPDX-License-Identifier: Apache-2.0 */
/* Words that kernels of one card and the host share. */
#include "core/gpu_word.h"

#include "core/args.h"
#include "core/engine.h"
#include "core/error_text.h"
#include "mem/cuda.h"
#include "mem/word.h"

#include <wimm/cuda.h>

wimm_status gpu_device_check(int device)
{
	const struct cuda_lib *lib;

	if (device < 0) {
		error_text_set("cuda: device %d", device);
		return WIMM_E_INVAL;
	}
	if (mem_cuda_enter(device, &lib) != WIMM_OK) {
		error_text_set("cuda: device %d is not here, or this process has no CUDA in use",
		               device);
		return WIMM_E_UNSUPPORTED;
	}
	mem_cuda_leave(lib);
	return WIMM_OK;
}

wimm_status wimm_alloc_gpu_word(struct wimm_engine *engine, int device, struct wimm_gpu_word *out)
{
	wimm_status st = engine_check(engine);
	struct mem_word word;

	if (st != WIMM_OK)
		return st;
	if (out == NULL || out->size != sizeof(*out))
		return args_refused("wimm_gpu_word", out, sizeof(*out), 0);
	st = gpu_device_check(device);
	if (st != WIMM_OK)
		return st;
	if (!mem_word_alloc_on(device, &word))
		return WIMM_E_NOMEM;
	out->in_card = word.in_card;
	out->host = word.host;
	out->gpu = word.card;
	return WIMM_OK;
}

void wimm_free_gpu_word(uint64_t *host)
{
	mem_word_free(host);
}

void wimm_gpu_word_store(uint64_t *host, uint64_t value)
{
	if (host != NULL)
		mem_word_store(host, value);
}
