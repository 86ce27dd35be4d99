/* SPDX-License-Identifier: Apache-2.0 */
#include "vm/pair.h"

#include "unit/mem/fake.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/json.h"

#include <wimm/engine.h>
#include <wimm/imm.h>
#include <wimm/region.h>
#include <wimm/transfer.h>

#include <dirent.h>
#include <string.h>

/* Memory of a (fake) GPU, which the host cannot touch: whoever reads it there ends the process. */

enum { GPU_BYTES = 1 << 20, AT = 5000, LEN = 300000, IMM = 9 };

static struct fake_cuda_knobs *cuda;
static struct fake_knobs *nic;

static int start(void **state)
{
	(void)state;
	cuda = fake_cuda_start();
	nic = pair_fake();
	nic->gpu_view = cuda->shadow;
	cuda->no_dmabuf = 0;
	cuda->writes_ordering = 200;
	return 0;
}

static void *ptr_of(uint64_t addr)
{
	return (void *)(uintptr_t)addr;
}

static uint32_t descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint32_t n = 0;

	assert_non_null(dir);
	while (readdir(dir) != NULL)
		n++;
	closedir(dir);
	return n;
}

static wimm_status reg(struct side *s, uint64_t addr, uint32_t flags, uint64_t *key,
                       struct prov_error *error)
{
	return prov_verbs_ops.reg(s->dev, ptr_of(addr), LEN, flags | PROV_REG_GPU, 0, key, error);
}

static void gpu_region_is_registered_by_dmabuf_with_its_offset_and_address(void **state)
{
	/* Goal: pages are exported, the range inside them is registered; no descriptor stays. */
	uint64_t ptr = cuda->alloc(GPU_BYTES, 0);
	struct prov_error error;
	struct side s = { 0 };
	uint64_t key;
	uint32_t fds;

	(void)state;
	side_open(&s, "fake0");
	fds = descriptors();
	assert_ok(reg(&s, ptr + AT, PROV_REG_REMOTE, &key, &error));
	assert_int_equal(descriptors(), fds);
	assert_int_equal(nic->dmabufs, 1);
	assert_int_equal(nic->peermems, 0);
	assert_true(nic->dmabuf.fd >= 0 && nic->dmabuf.inode != 0);
	assert_int_equal(nic->dmabuf.offset, AT % 4096);
	assert_int_equal(nic->dmabuf.len_bytes, LEN);
	assert_int_equal(nic->dmabuf.iova, ptr + AT);
	/* Local and remote write, relaxed ordering; nobody reads. */
	assert_int_equal(nic->dmabuf.access, 1 | 2 | 1 << 20);
	assert_ok(reg(&s, ptr + AT, PROV_REG_STRICT_ORDER, &key, &error));
	assert_int_equal(nic->dmabuf.access, 0);
	side_close(&s);
	assert_int_equal(nic->objects(), 0);
	cuda->free(ptr);
}

static void gpu_region_that_dmabuf_refuses_goes_by_peermem(void **state)
{
	/* Goal: whichever of the two drivers refuses the dma-buf, the second way is taken. */
	uint64_t ptr = cuda->alloc(GPU_BYTES, 0);
	struct prov_error error;
	struct side s = { 0 };
	uint64_t key;

	(void)state;
	nic->peermem = true;
	side_open(&s, "fake0");
	for (uint32_t i = 0; i < 2; i++) {
		cuda->no_dmabuf = i == 0;
		nic->no_dmabuf = i == 1;
		assert_ok(reg(&s, ptr + AT, PROV_REG_REMOTE, &key, &error));
		assert_int_equal(nic->peermems, i + 1);
		prov_verbs_ops.dereg(s.dev, key);
	}
	assert_int_equal(nic->dmabufs, 0);
	side_close(&s);
	assert_int_equal(nic->objects(), 0);
	cuda->free(ptr);
}

static void gpu_region_that_both_refuse_says_why_and_leaves_nothing(void **state)
{
	/* Goal: E_UNSUPPORTED with the device and both reasons; no region, no descriptor. */
	uint64_t ptr = cuda->alloc(GPU_BYTES, 0);
	struct prov_error error;
	struct side s = { 0 };
	uint64_t key = 77;
	uint32_t fds, objects;

	(void)state;
	side_open(&s, "fake0");
	fds = descriptors();
	objects = nic->objects();
	nic->no_dmabuf = true;
	assert_int_equal(reg(&s, ptr, PROV_REG_REMOTE, &key, &error), WIMM_E_UNSUPPORTED);
	assert_non_null(strstr(error.text, "fake0 port 1"));
	assert_non_null(strstr(error.text, "dma-buf: the NIC's driver refuses it"));
	assert_non_null(strstr(error.text, "peermem: Bad address"));
	assert_int_equal(key, 77);
	assert_int_equal(descriptors(), fds);
	assert_int_equal(nic->objects(), objects);
	side_close(&s);
	cuda->free(ptr);
}

static void gpu_region_leaks_nothing_when_memory_runs_out(void **state)
{
	/* Goal: a region that cannot be remembered is given back to the device. */
	uint64_t ptr = cuda->alloc(GPU_BYTES, 0);
	struct prov_error error;
	struct side s = { 0 };
	uint64_t key, blocks;
	uint32_t objects, fds;

	(void)state;
	side_open(&s, "fake0");
	objects = nic->objects();
	blocks = mem_live_blocks();
	fds = descriptors();
	for (uint64_t n = 1;; n++) {
		wimm_status st;

		mem_fail_nth(n);
		st = reg(&s, ptr, PROV_REG_REMOTE, &key, &error);
		if (!mem_fail_fired()) {
			assert_ok(st);
			break;
		}
		assert_int_not_equal(st, WIMM_OK);
		assert_int_equal(nic->objects(), objects);
		assert_int_equal(mem_live_blocks(), blocks);
		assert_int_equal(descriptors(), fds);
	}
	mem_fail_nth(0);
	side_close(&s);
	assert_int_equal(nic->objects(), 0);
	cuda->free(ptr);
}

static void gpu_that_needs_a_loopback_read_takes_no_writes_of_nics(void **state)
{
	/* Goal: contract C6: what this provider cannot make visible it does not accept; reading
	 * from such memory needs nothing. */
	uint64_t ptr = cuda->alloc(GPU_BYTES, 0);
	struct prov_error error;
	struct side s = { 0 };
	uint64_t key;

	(void)state;
	cuda->writes_ordering = 0;
	cuda->flush_options = 0;
	side_open(&s, "fake0");
	assert_int_equal(reg(&s, ptr, PROV_REG_REMOTE, &key, &error), WIMM_E_UNSUPPORTED);
	assert_non_null(strstr(error.text, "loopback READ"));
	assert_ok(reg(&s, ptr, 0, &key, &error));
	side_close(&s);
	cuda->free(ptr);
}

/* --- whole engines, driven by hand: the fake library has one thread --- */

struct node {
	struct wimm_engine *engine;
	struct wimm_mr *mr;
	uint64_t ptr; /* 0: memory of the host */
	uint8_t *bytes;
};

static uint8_t host_memory[2][GPU_BYTES];

static void node_open(struct node *n, uint32_t i, bool gpu)
{
	struct wimm_engine_opts opts = WIMM_ENGINE_OPTS_INIT;

	opts.provider = "verbs";
	opts.nics = i == 0 ? "fake0" : "fake1";
	opts.progress = WIMM_PROGRESS_CALLER;
	assert_ok(wimm_engine_open(&opts, &n->engine));
	n->ptr = gpu ? cuda->alloc(GPU_BYTES, 0) : 0;
	n->bytes = gpu ? cuda->shadow(n->ptr) : host_memory[i];
	memset(n->bytes, 0, GPU_BYTES);
	assert_ok(wimm_reg_mr(n->engine, gpu ? ptr_of(n->ptr) : n->bytes, GPU_BYTES, NULL, &n->mr));
}

static void node_close(struct node *n)
{
	assert_ok(wimm_engine_close(&n->engine));
	if (n->ptr != 0)
		cuda->free(n->ptr);
}

struct flow {
	struct node a, b;
	struct wimm_remote_mr *to;
	uint64_t flag;
};

static bool flow_done(void *arg)
{
	struct flow *f = arg;

	assert_ok(wimm_progress(f->a.engine, NULL));
	assert_ok(wimm_progress(f->b.engine, NULL));
	(void)cuda->run();
	return wimm_flag_load(&f->flag) != 0;
}

static void write_of(struct flow *f, uint64_t from, uint64_t to, uint64_t len)
{
	struct wimm_on_done done = { .flag = &f->flag };
	struct wimm_write w = WIMM_WRITE_INIT;

	f->flag = 0;
	w.flags = WIMM_IMM | WIMM_CONFIRMED;
	w.imm = IMM;
	w.src = f->a.mr;
	w.dst = f->to;
	w.src_offset_bytes = from;
	w.dst_offset_bytes = to;
	w.len_bytes = len;
	assert_ok(wimm_submit_single_write(f->a.engine, &w, &done, NULL));
	assert_true(test_wait_until(flow_done, f, TEST_DEADLINE_MS));
	assert_int_equal(wimm_flag_load(&f->flag), 1);
}

static void pages_of(struct flow *f)
{
	enum { COUNT = 20, PAGE = 64 }; /* short enough to go inline, were they the host's */
	struct wimm_paged_writes w = WIMM_PAGED_WRITES_INIT;
	struct wimm_on_done done = { .flag = &f->flag };
	uint32_t index[COUNT];

	for (uint32_t i = 0; i < COUNT; i++)
		index[i] = i * 3;
	f->flag = 0;
	w.flags = WIMM_IMM | WIMM_CONFIRMED;
	w.imm = IMM;
	w.src = f->a.mr;
	w.dst = f->to;
	w.page_len_bytes = PAGE;
	w.src_pages = (struct wimm_pages){ index, COUNT, PAGE, 0 };
	w.dst_pages = w.src_pages;
	memset(f->b.bytes, 0, GPU_BYTES);
	assert_ok(wimm_submit_paged_writes(f->a.engine, &w, &done, NULL));
	assert_true(test_wait_until(flow_done, f, TEST_DEADLINE_MS));
	assert_int_equal(wimm_flag_load(&f->flag), 1);
	for (uint32_t i = 0; i < COUNT; i++)
		assert_memory_equal(f->b.bytes + (size_t)index[i] * PAGE,
		                    f->a.bytes + (size_t)index[i] * PAGE, PAGE);
}

/* Writes of several lengths arrive; *out_copies: what the card had to copy for them. */
static void carries(bool from_gpu, bool to_gpu, uint64_t *out_copies)
{
	static const uint64_t lens[] = { 0, 8, 100, 4096, LEN };
	uint64_t counted = 0;
	struct wimm_mr_desc desc;
	struct flow f = { 0 };

	assert_ok(config_set("same_host", "off"));
	node_open(&f.a, 0, from_gpu);
	node_open(&f.b, 1, to_gpu);
	assert_ok(wimm_mr_get_desc(f.b.mr, &desc));
	assert_ok(wimm_open_remote_mr(f.a.engine, &desc, &f.to));
	for (uint32_t i = 0; i < GPU_BYTES; i++)
		f.a.bytes[i] = (uint8_t)(i * 7 + i / 251);
	*out_copies = cuda->copies;
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		memset(f.b.bytes, 0, GPU_BYTES);
		write_of(&f, 33, 77, lens[i]);
		assert_memory_equal(f.b.bytes + 77, f.a.bytes + 33, lens[i]);
		assert_int_equal(f.b.bytes[76] | f.b.bytes[77 + lens[i]], 0);
	}
	pages_of(&f);
	*out_copies = cuda->copies - *out_copies;
	assert_ok(wimm_forget_imm(f.b.engine, IMM, &counted));
	assert_int_equal(counted, sizeof(lens) / sizeof(lens[0]) + 20);
	node_close(&f.a);
	node_close(&f.b);
	assert_ok(config_set("same_host", "auto"));
}

static void gpu_memory_at_either_end_is_reached_by_the_nics_themselves(void **state)
{
	/* Goal: no slot, no copy of the card's, nothing inline that the host would have to read. */
	uint64_t copies;

	(void)state;
	for (int ends = 1; ends < 4; ends++) {
		carries((ends & 1) != 0, (ends & 2) != 0, &copies);
		assert_int_equal(copies, 0);
	}
	assert_true(nic->dmabufs > 0);
	assert_int_equal(cuda->flushes, 0); /* the card orders a NIC's writes */
	assert_int_equal(nic->objects(), 0);
}

static void gpu_memory_that_no_nic_reaches_goes_through_slots(void **state)
{
	/* Goal: a refusal of both ways costs nothing but the way through the host. */
	uint64_t copies;

	(void)state;
	nic->no_dmabuf = true;
	carries(true, true, &copies);
	assert_true(copies > 0);
	assert_int_equal(nic->dmabufs + nic->peermems, 0);
	assert_int_equal(nic->objects(), 0);
}

static void gpu_that_is_flushed_by_a_call_is_before_immediates_are_counted(void **state)
{
	/* Goal: contract C6 for a card that does not order a NIC's writes. */
	uint64_t flushes = cuda->flushes;
	uint64_t copies;

	(void)state;
	cuda->writes_ordering = 0;
	cuda->flush_options = 1;
	carries(false, true, &copies);
	assert_int_equal(copies, 0);
	assert_true(cuda->flushes > flushes);
}

static void gpu_ways_are_told_by_info(void **state)
{
	/* Goal: wimm info names the ways in their order, and that the NIC may reach GPUs. */
	static char text[1 << 17];
	size_t len;

	(void)state;
	assert_ok(wimm_info_json(text, sizeof(text), &len));
	assert_non_null(strstr(text, "memory of GPUs: by dma-buf, else by peermem"));
	assert_non_null(strstr(text, "\"gpu_regions\": true"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(
			gpu_region_is_registered_by_dmabuf_with_its_offset_and_address, start),
		cmocka_unit_test_setup(gpu_region_that_dmabuf_refuses_goes_by_peermem, start),
		cmocka_unit_test_setup(gpu_region_that_both_refuse_says_why_and_leaves_nothing,
		                       start),
		cmocka_unit_test_setup(gpu_region_leaks_nothing_when_memory_runs_out, start),
		cmocka_unit_test_setup(gpu_that_needs_a_loopback_read_takes_no_writes_of_nics,
		                       start),
		cmocka_unit_test_setup(gpu_memory_at_either_end_is_reached_by_the_nics_themselves,
		                       start),
		cmocka_unit_test_setup(gpu_memory_that_no_nic_reaches_goes_through_slots, start),
		cmocka_unit_test_setup(
			gpu_that_is_flushed_by_a_call_is_before_immediates_are_counted, start),
		cmocka_unit_test_setup(gpu_ways_are_told_by_info, start),
	};

	return cmocka_run_group_tests_name("prov/verbs/gpu", tests, NULL, NULL);
}
