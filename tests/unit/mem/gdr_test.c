/* SPDX-License-Identifier: Apache-2.0 */
/* Words in memory of a card, over GDRCopy's library and a driver of tests/fake. Each process loads
 * the library once, so each case has one of its own. */
#include "lib/test.h"
#include "unit/mem/fake.h"

#include "fake/gdrapi.h"
#include "mem/gdr.h"
#include "mem/word.h"

#include <wimm/cuda.h>
#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>
#include <wimm/watcher.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IMM = 7 };

static struct fake_cuda_knobs *fake;
static struct fake_gdr_knobs *gdr;

static void load_fakes(void)
{
	char path[CONFIG_TEXT_BYTES];
	void *handle;

	fake = fake_cuda_start();
	assert_non_null(fake);
	config_get_text(CFG_GDRCOPY_LIBRARY, path);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	assert_non_null(handle);
	gdr = dlsym(handle, FAKE_GDR_KNOBS);
	assert_non_null(gdr);
}

/* Fails in the child end it with 1. */
static void in_a_process(void (*run)(void))
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		run();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

#define must(cond)                                                                                 \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			(void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);           \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static struct wimm_engine *open_engine(void)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;
	struct wimm_engine *engine = NULL;

	opts.provider = "host";
	must(wimm_engine_open(&opts, &engine) == WIMM_OK);
	return engine;
}

/* --- words --- */

static void words_in_the_card(void)
{
	struct mem_word w[3000];
	uint32_t before;

	load_fakes();
	before = fake->objects();
	for (int i = 0; i < 3000; i++) {
		must(mem_word_alloc_on(0, &w[i]));
		must(w[i].in_card && w[i].card != (uint64_t)(uintptr_t)w[i].host);
		must(w[i].card % 64 == 0 && *w[i].host == 0);
		must(fake->shadow(w[i].card) == w[i].host);
		mem_word_store(w[i].host, (uint64_t)i + 1);
	}
	must(gdr->pinned == 3 && gdr->mapped == 3);
	for (int i = 0; i < 3000; i++) {
		must(*(uint64_t *)fake->shadow(w[i].card) == (uint64_t)i + 1);
		must(mem_word_find(w[i].host).card == w[i].card);
		mem_word_free(w[i].host);
	}
	must(gdr->pinned == 0 && gdr->mapped == 0 && fake->objects() == before);
	must(mem_word_card_chunks == 0);
}

static void word_of_a_card_has_two_addresses_and_one_content(void **state)
{
	/* Goal: what the host stores is in the card's memory, and all of it is given back. */
	(void)state;
	in_a_process(words_in_the_card);
}

static void words_fall_back(void)
{
	struct mem_word w;
	char text[512];

	load_fakes();
	gdr->fail_pin = EPERM;
	must(mem_word_alloc_on(0, &w) && !w.in_card);
	must(w.card == (uint64_t)(uintptr_t)w.host);
	mem_word_free(w.host);
	must(gdr_state(text, sizeof(text)) && strstr(text, "cannot be pinned"));
	gdr->fail_pin = 0;
	gdr->fail_map = ENOMEM;
	must(mem_word_alloc_on(0, &w) && !w.in_card && gdr->pinned == 0);
	mem_word_free(w.host);
	gdr->fail_map = 0;
	gdr->fail_info = EINVAL;
	must(mem_word_alloc_on(0, &w) && !w.in_card && gdr->pinned == 0 && gdr->mapped == 0);
	mem_word_free(w.host);
	gdr->fail_info = 0;
	must(mem_word_alloc_on(0, &w) && w.in_card);
	mem_word_free(w.host);
}

static void word_lies_in_the_host_where_the_card_cannot_be_mapped(void **state)
{
	/* Goal: each failure leaves a word that works, nothing pinned, and says what it was. */
	(void)state;
	in_a_process(words_fall_back);
}

/* --- what wimm info says --- */

static void says(const char *what)
{
	char *json = malloc(1 << 20);
	size_t len;

	must(wimm_info_json(json, 1 << 20, &len) == WIMM_OK);
	must(strstr(json, "\"gdrcopy\"") != NULL);
	if (strstr(json, what) == NULL) {
		(void)fprintf(stderr, "no \"%s\" in %s\n", what, json);
		_exit(1);
	}
	free(json);
}

static void info_ready(void)
{
	load_fakes();
	says("ready, version 2.5, kernel module 2.4");
}

static void info_absent(void)
{
	struct mem_word w;

	load_fakes();
	gdr->absent = 1;
	says("its kernel module does not answer");
	must(mem_word_alloc_on(0, &w) && !w.in_card);
}

static void info_other_version(void)
{
	load_fakes();
	gdr->major = 3;
	says("version 3.5, version 2 is needed");
}

static void info_no_library(void)
{
	must(config_set("gdrcopy_library", "libnothere.so.2") == WIMM_OK);
	says("libnothere.so.2");
}

static void info_off(void)
{
	must(config_set("gdrcopy_library", "") == WIMM_OK);
	says("switched off (setting gdrcopy_library)");
}

static void info_not_it(void)
{
	must(config_set("gdrcopy_library", "libc.so.6") == WIMM_OK);
	says("its library has no gdr_open");
}

static void info_says_whether_gdrcopy_is_there_or_why_not(void **state)
{
	/* Goal: presence with both versions; each kind of absence in words. */
	(void)state;
	in_a_process(info_ready);
	in_a_process(info_absent);
	in_a_process(info_other_version);
	in_a_process(info_no_library);
	in_a_process(info_off);
	in_a_process(info_not_it);
}

/* --- the API --- */

static _Atomic uint64_t told;

static void on_change(void *context, uint64_t old_value, uint64_t new_value)
{
	(void)context;
	(void)old_value;
	atomic_store(&told, new_value);
}

static bool was_told(void *arg)
{
	return atomic_load(&told) == *(uint64_t *)arg;
}

static void watcher(void)
{
	struct wimm_uvm_watcher *wa;
	struct wimm_engine *engine;
	uint64_t want = 5;

	load_fakes();
	engine = open_engine();
	must(wimm_alloc_gpu_watcher(engine, 9, on_change, NULL, &wa) == WIMM_E_UNSUPPORTED);
	must(wimm_alloc_gpu_watcher(engine, -1, on_change, NULL, &wa) == WIMM_E_INVAL);
	must(wimm_alloc_gpu_watcher(engine, 0, on_change, NULL, &wa) == WIMM_OK);
	must(fake->shadow(wimm_uvm_watcher_gpu_word(wa)) == wimm_uvm_watcher_word(wa));
	/* As a kernel would: through the card's own address. */
	__atomic_store_n((uint64_t *)fake->shadow(wimm_uvm_watcher_gpu_word(wa)), 5,
	                 __ATOMIC_RELEASE);
	must(test_wait_until(was_told, &want, TEST_DEADLINE_MS));
	must(wimm_uvm_watcher_add(wa, 2) == 7 && wimm_uvm_watcher_add(wa, 0) == 7);
	want = 7;
	must(test_wait_until(was_told, &want, TEST_DEADLINE_MS));
	must(wimm_free_uvm_watcher(wa) == WIMM_OK);
	must(gdr->mapped == 0);
	must(wimm_alloc_uvm_watcher(engine, on_change, NULL, &wa) == WIMM_OK);
	must(wimm_uvm_watcher_gpu_word(wa) == (uint64_t)(uintptr_t)wimm_uvm_watcher_word(wa));
	must(wimm_free_uvm_watcher(wa) == WIMM_OK);
	must(wimm_engine_close(&engine) == WIMM_OK);
}

static void watcher_in_a_card_is_told_what_its_kernels_store(void **state)
{
	/* Goal: the word lies in the card, changes there are reported, and the plain kind stays. */
	(void)state;
	in_a_process(watcher);
}

static bool is_three(void *arg)
{
	return wimm_mirror_load(arg) == 3;
}

static bool is_set(void *arg)
{
	return wimm_flag_load(arg) != 0;
}

static void flag_and_mirror(void)
{
	struct wimm_gpu_word flag = WIMM_GPU_WORD_INIT, mirror = WIMM_GPU_WORD_INIT;
	struct wimm_on_done on_done = { 0 };
	struct wimm_write wr = WIMM_WRITE_INIT;
	struct wimm_remote_mr *remote;
	struct wimm_mr_desc desc;
	struct wimm_engine *engine;
	struct wimm_mr *mr;
	static uint64_t memory[8];
	uint64_t total;

	load_fakes();
	engine = open_engine();
	flag.size--;
	must(wimm_alloc_gpu_word(engine, 0, &flag) == WIMM_E_INVAL);
	flag.size++;
	must(wimm_alloc_gpu_word(engine, 5, &flag) == WIMM_E_UNSUPPORTED);
	must(wimm_alloc_gpu_word(engine, 0, &flag) == WIMM_OK && flag.in_card == 1);
	must(wimm_alloc_gpu_word(engine, 0, &mirror) == WIMM_OK && mirror.in_card == 1);
	must(wimm_reg_mr(engine, memory, sizeof(memory), NULL, &mr) == WIMM_OK);
	must(wimm_mr_get_desc(mr, &desc) == WIMM_OK);
	must(wimm_open_remote_mr(engine, &desc, &remote) == WIMM_OK);
	must(wimm_mirror_enable(engine, IMM, mirror.host) == WIMM_OK);
	on_done.flag = flag.host;
	must(wimm_expect_imm_count(engine, IMM, 3, NULL, &on_done, NULL) == WIMM_OK);
	wr.src = mr;
	wr.dst = remote;
	wr.len_bytes = 8;
	wr.dst_offset_bytes = 8;
	wr.imm = IMM;
	wr.flags = WIMM_IMM;
	for (int i = 0; i < 3; i++) {
		must(*(uint64_t *)fake->shadow(flag.gpu) == 0);
		must(wimm_submit_single_write(engine, &wr, NULL, NULL) == WIMM_OK);
	}
	must(test_wait_until(is_set, fake->shadow(flag.gpu), TEST_DEADLINE_MS));
	must(test_wait_until(is_three, fake->shadow(mirror.gpu), TEST_DEADLINE_MS));
	must(wimm_mirror_disable(engine, IMM, &total) == WIMM_OK && total == 3);
	wimm_gpu_word_store(flag.host, 0);
	must(*(uint64_t *)fake->shadow(flag.gpu) == 0);
	wimm_free_gpu_word(flag.host);
	wimm_free_gpu_word(mirror.host);
	wimm_free_gpu_word(NULL);
	must(gdr->mapped == 0);
	must(wimm_engine_close(&engine) == WIMM_OK);
}

static void flag_and_mirror_in_a_card_show_what_has_arrived(void **state)
{
	/* Goal: words that release kernels are in the card's memory when their time has come. */
	(void)state;
	in_a_process(flag_and_mirror);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(word_of_a_card_has_two_addresses_and_one_content),
		cmocka_unit_test(word_lies_in_the_host_where_the_card_cannot_be_mapped),
		cmocka_unit_test(info_says_whether_gdrcopy_is_there_or_why_not),
		cmocka_unit_test(watcher_in_a_card_is_told_what_its_kernels_store),
		cmocka_unit_test(flag_and_mirror_in_a_card_show_what_has_arrived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
