/* SPDX-License-Identifier: Apache-2.0 */

/* Instructions of both engines for one list of pages between memory of GPUs in provider host, over
 * the CUDA driver of tests/fake, whose kernels copy nothing here: from the submission until the
 * card has been asked, and from the card's last word until both sides have counted. What the driver
 * would do is not counted. Run under "valgrind --tool=callgrind --collect-atstart=no":
 *
 *   cost_gpu push|pull PAGES N [kept]    N lists of PAGES pages, the same one kept for all of them
 *                                        or copied each time; 77 where the build has no kernels
 *
 * Two lengths give the cost of a page. bench/run does that. */

#include "../must.h"

#include "fake/cuda.h"
#include "mem/kernels.h"

#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <valgrind/callgrind.h>

enum { PAGE_BYTES = 64, PAGES_MAX = 1000000, WARMUP = 2, IMM = 7 };

static struct wimm_engine *engine[2]; /* the first writes to the second */
static struct wimm_mr *source;
static struct wimm_remote_mr *target;
static uint32_t indices[2 * PAGES_MAX];
static struct wimm_page_list *kept; /* NULL: none */
static struct fake_cuda_knobs *fake;

static struct wimm_mr *open_one(int i)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	uint64_t bytes = (uint64_t)PAGES_MAX * PAGE_BYTES;
	struct wimm_mr *mr;

	opts.provider = "host";
	opts.progress = WIMM_PROGRESS_CALLER;
	opts.peer_timeout_ms = 3600000; /* valgrind is slow */
	opts.heartbeat_ms = 1800000;
	must(wimm_engine_open(&opts, &engine[i]), "open");
	must(wimm_reg_mr(engine[i], (void *)(uintptr_t)fake->alloc(bytes, 0), bytes, NULL, &mr),
	     "reg_mr");
	return mr;
}

static void step(void)
{
	must(wimm_progress(engine[0], NULL), "progress");
	must(wimm_progress(engine[1], NULL), "progress");
}

/* One list. The card is asked while it holds everything back, and lets go when told. */
static void one(uint64_t pages, bool count)
{
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;
	uint64_t flag = 0, here = 0;
	struct wimm_on_done done = { .flag = &flag };

	w.src = source;
	w.dst = target;
	w.page_len_bytes = PAGE_BYTES;
	w.src_pages = (struct wimm_pages){ indices, pages, PAGE_BYTES, 0 };
	w.dst_pages = (struct wimm_pages){ indices + PAGES_MAX, pages, PAGE_BYTES, 0 };
	w.list = kept;
	w.flags = WIMM_IMM;
	w.imm = IMM;
	fake->hold = 1;
	if (count)
		CALLGRIND_TOGGLE_COLLECT;
	must(wimm_submit_paged_writes(engine[0], &w, &done, NULL), "submit");
	while (wimm_flag_load(&flag) == 0 || here < pages) {
		uint64_t launches = fake->launches;

		step();
		must(wimm_poll_imm(engine[1], IMM, &here), "poll");
		if (fake->launches == launches)
			continue;
		if (count)
			CALLGRIND_TOGGLE_COLLECT;
		(void)fake->run();
		if (count)
			CALLGRIND_TOGGLE_COLLECT;
	}
	if (count)
		CALLGRIND_TOGGLE_COLLECT;
	must(wimm_forget_imm(engine[1], IMM, &here), "forget");
	if (here != pages || flag != 1)
		exit(1);
}

int main(int argc, char **argv)
{
	bool keep = argc == 5 && strcmp(argv[4], "kept") == 0;
	uint64_t pages = argc == 4 || keep ? strtoull(argv[2], NULL, 10) : 0;
	const char *path = getenv("WIMM_CUDA_LIBRARY");
	void *driver = path != NULL ? dlopen(path, RTLD_NOW) : NULL;
	struct wimm_mr_desc desc;
	struct wimm_mr *mr;

	fake = driver != NULL ? dlsym(driver, FAKE_CUDA_KNOBS) : NULL;
	if (fake == NULL || pages == 0 || pages > PAGES_MAX ||
	    setenv("WIMM_HOST_GPU_WAY", argv[1], 1) != 0) {
		(void)fprintf(stderr, "usage: WIMM_CUDA_LIBRARY=FAKE cost_gpu push|pull PAGES N "
		                      "[kept]\n");
		return 2;
	}
	if (kernels_image() == NULL)
		return 77;
	fake->empty_kernels = 1;
	for (uint32_t i = 0; i < PAGES_MAX; i++) {
		indices[i] = (uint32_t)((uint64_t)i * 7919 % PAGES_MAX);
		indices[PAGES_MAX + i] = PAGES_MAX - 1 - i;
	}
	source = open_one(0);
	mr = open_one(1);
	must(wimm_mr_get_desc(mr, &desc), "desc");
	must(wimm_open_remote_mr(engine[0], &desc, &target), "remote");
	if (keep)
		must(wimm_page_list_open(engine[0], source, indices, indices + PAGES_MAX, pages,
		                         &kept),
		     "page_list_open");
	for (int i = 0; i < WARMUP; i++)
		one(pages, false);
	for (int i = 0; i < atoi(argv[3]); i++)
		one(pages, true);
	wimm_page_list_close(&kept);
	must(wimm_engine_close(&engine[0]), "close");
	must(wimm_engine_close(&engine[1]), "close");
	return 0;
}
