/* SPDX-License-Identifier: Apache-2.0 */
/* The memory kind cuda and its queue of copies, on a card: what pointers are, what leaves the
 * process, right bytes for odd lengths and places; with --rates figures, with --few so little that
 * compute-sanitizer, which slows kernels down by ten and more, has done it in half a minute. */
#include "gpu/gpu.h"

#include "base/config.h"
#include "plat/rand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static struct rng rng;
static bool few;

/* --- another process --- */

static void send_export(int sock, const struct mem_cuda_export *e)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { (void *)(uintptr_t)e, sizeof(*e) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;

	if (e->fd >= 0) {
		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &e->fd, sizeof(int));
	}
	MUST(sendmsg(sock, &msg, 0) != sizeof(*e));
}

static bool recv_export(int sock, struct mem_cuda_export *e)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { e, sizeof(*e) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
		              .msg_controllen = sizeof(control) };
	struct cmsghdr *c;

	if (recvmsg(sock, &msg, 0) != sizeof(*e))
		return false;
	e->fd = -1;
	c = CMSG_FIRSTHDR(&msg);
	if (c)
		memcpy(&e->fd, CMSG_DATA(c), sizeof(int));
	return true;
}

/* Fills what it is given with a pattern. */
static void child(int sock)
{
	char text[MEM_CUDA_TEXT_BYTES];
	struct mem_cuda_export e;

	gpu_start();
	while (recv_export(sock, &e)) {
		struct mem_cuda_map map;
		char answer = mem_cuda_import(&e, &map, text, sizeof(text)) == WIMM_OK;

		if (answer) {
			gpu_fill(map.base + e.offset, MIB, 77, 0);
			mem_cuda_unmap(&map);
		} else {
			printf("# %s\n", text);
			(void)fflush(stdout);
		}
		if (e.fd >= 0)
			(void)close(e.fd);
		MUST(write(sock, &answer, 1) != 1);
	}
	_Exit(0);
}

static void export_case(int sock)
{
	char text[MEM_CUDA_TEXT_BYTES];

	gpu_case("memory: exported memory of each kind is written by another process");
	for (int vmm = 0; vmm < 2; vmm++) {
		cu_ptr ptr = vmm ? gpu_alloc_vmm(8 * MIB) : gpu_alloc(8 * MIB);
		struct mem_cuda_export e;
		char answer = 0;

		gpu_fill(ptr, 8 * MIB, 1, 0);
		MUST(mem_cuda_export((void *)(uintptr_t)(ptr + MIB + 512), MIB, &e, text,
		                     sizeof(text)));
		CHECK(e.vmm == (vmm == 1) && e.offset == MIB + 512 && e.bytes == 8 * MIB);
		send_export(sock, &e);
		MUST(read(sock, &answer, 1) != 1);
		CHECK(answer == 1);
		CHECK(gpu_check(ptr + MIB + 512, MIB, 77, 0) == 0);
		CHECK(gpu_check(ptr, MIB + 512, 1, 0) == 0);
		if (e.fd >= 0)
			(void)close(e.fd);
	}
}

/* --- what pointers are --- */

static void describe_case(void)
{
	char text[MEM_CUDA_TEXT_BYTES] = "";
	struct mem_cuda_range range;
	uint64_t offset;
	bool is_cuda;
	int fd;

	gpu_case("memory: pointers are told apart, ranges and dma-buf offsets are right");
	for (int vmm = 0; vmm < 2; vmm++) {
		cu_ptr ptr = vmm ? gpu_alloc_vmm(4 * MIB) : gpu_alloc(4 * MIB);

		MUST(mem_cuda_describe((void *)(uintptr_t)(ptr + 4100), MIB, &is_cuda, &range, text,
		                       sizeof(text)));
		CHECK(is_cuda && range.base == ptr && range.base_bytes == 4 * MIB && range.whole);
		CHECK(range.vmm == (vmm == 1) && range.device == 0);
		CHECK(mem_cuda_describe((void *)(uintptr_t)(ptr + MIB), 64 * GIB, &is_cuda, &range,
		                        text, sizeof(text)) == WIMM_E_RANGE);
		if (mem_cuda_dmabuf((void *)(uintptr_t)(ptr + 4100), MIB, &fd, &offset, text,
		                    sizeof(text)) == WIMM_OK) {
			CHECK(fd >= 0 && offset == 4);
			printf("# dma-buf of %s: descriptor, offset %d, length %ld\n",
			       vmm ? "cuMemCreate" : "cuMemAlloc", (int)offset,
			       (long)lseek(fd, 0, SEEK_END));
			(void)close(fd);
		} else {
			printf("# dma-buf: %s\n", text);
			CHECK(false);
		}
	}
	MUST(mem_cuda_describe(&is_cuda, 1, &is_cuda, &range, text, sizeof(text)));
	CHECK(!is_cuda);
	MUST(mem_cuda_describe(cuda_host_alloc(64), 64, &is_cuda, &range, text, sizeof(text)));
	CHECK(!is_cuda);
}

/* --- copies --- */

static struct cuda_queue *open_queue(const char *sms)
{
	char text[MEM_CUDA_TEXT_BYTES];
	struct cuda_queue *q;

	MUST(config_set("gpu_sms", sms));
	MUST(cuda_queue_open(0, &q, text, sizeof(text)));
	return q;
}

static void wait_done(struct cuda_queue *q, uint64_t ticket)
{
	double limit = gpu_now_s() + 20;

	while (!cuda_queue_done(q, ticket)) {
		if (gpu_now_s() < limit)
			continue;
		MUST(cuda_queue_check(q));
		MUST(1);
	}
}

static void odd_case(void)
{
	const uint64_t bytes = few ? 2 * MIB : 32 * MIB;
	cu_ptr src = gpu_alloc(bytes);
	cu_ptr dst = gpu_alloc(bytes);
	struct cuda_queue *q = open_queue("64");

	gpu_case("copy: random lengths and places, no byte beside them touched");
	gpu_fill(src, bytes, 5, 0);
	for (int i = 0; i < (few ? 40 : 400); i++) {
		uint64_t len = rng_u64(&rng) >> (rng_u64(&rng) % 20 + (few ? 44 : 40));
		uint64_t from = rng_u64(&rng) % (bytes - len);
		uint64_t to = i % 3 == 0 ? from : rng_u64(&rng) % (bytes - len);
		uint64_t ticket;

		gpu_fill(dst, bytes, 6, 0);
		MUST(cuda_queue_copy_device(q, dst + to, src + from, len, &ticket));
		wait_done(q, ticket);
		CHECK(gpu_check(dst + to, len, 5, from) == 0);
		CHECK(gpu_check(dst, to, 6, 0) == 0);
		CHECK(gpu_check(dst + to + len, bytes - to - len, 6, to + len) == 0);
	}
	cuda_queue_close(q);
	MUST(gpu.free(src));
	MUST(gpu.free(dst));
}

static void shuffle(uint32_t *index, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		index[i] = (uint32_t)i;
	rng_shuffle_u32(&rng, index, count);
}

static void pages_case(void)
{
	static const uint64_t lens[] = { 1, 36, 4096, 4100, 16384, 65536, 100000 };
	struct cuda_queue *q = open_queue("64");
	const uint64_t count = few ? 60 : 700;

	gpu_case("pages: each lands where its indices say, strides kept free");
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		uint64_t stride = lens[i] + (i % 2 == 0 ? 0 : 52);
		cu_ptr src = gpu_alloc(count * stride);
		cu_ptr dst = gpu_alloc(count * stride);
		uint32_t *index = cuda_host_alloc(2 * count * sizeof(*index));
		struct cuda_pages p = { .src = src, .dst = dst, .src_index = index,
			                .dst_index = index + count, .count = count,
			                .src_stride = stride, .dst_stride = stride,
			                .page_bytes = lens[i] };
		uint64_t ticket;
		uint64_t wrong = 0;

		shuffle(index, count);
		shuffle(index + count, count);
		gpu_fill(src, count * stride, 8, 0);
		gpu_fill(dst, count * stride, 9, 0);
		MUST(cuda_queue_pages(q, &p, &ticket));
		wait_done(q, ticket);
		for (uint64_t k = 0; k < count; k++) {
			wrong += gpu_check(dst + index[count + k] * stride, lens[i], 8,
			                   index[k] * stride);
			wrong += gpu_check(dst + k * stride + lens[i], stride - lens[i], 9,
			                   k * stride + lens[i]);
		}
		CHECK(wrong == 0);
		cuda_host_free(index);
		MUST(gpu.free(src));
		MUST(gpu.free(dst));
	}
	cuda_queue_close(q);
}

/* GB/s of `times` launches one after the other. */
static double rate(struct cuda_queue *q, const struct cuda_pages *p, int times)
{
	uint64_t ticket;
	double from;

	MUST(cuda_queue_pages(q, p, &ticket));
	wait_done(q, ticket);
	from = gpu_now_s();
	for (int i = 0; i < times; i++)
		MUST(cuda_queue_pages(q, p, &ticket));
	wait_done(q, ticket);
	return (double)(p->count * p->page_bytes) * times / (gpu_now_s() - from) / 1e9;
}

static void page_rates(void)
{
	static const char *const sms[] = { "8", "16", "32", "64", "96", "0" };
	const uint64_t bytes = 4 * GIB;
	cu_ptr src = gpu_alloc(bytes);
	cu_ptr dst = gpu_alloc(bytes);
	uint32_t *index = cuda_host_alloc(8 * MIB);

	gpu_case("rates: pages by one kernel");
	for (size_t s = 0; s < sizeof(sms) / sizeof(sms[0]); s++) {
		struct cuda_queue *q = open_queue(sms[s]);

		for (uint64_t len = 1024; len <= 256 << 10; len *= 4) {
			uint64_t count = bytes / 8 / len;
			struct cuda_pages p = { .src = src, .dst = dst, .src_index = index,
				                .dst_index = index + count, .count = count,
				                .src_stride = 4 * len, .dst_stride = 4 * len,
				                .page_bytes = len };
			char name[64];

			shuffle(index, count);
			shuffle(index + count, count);
			(void)snprintf(name, sizeof(name), "pages_%luKiB_%s_sms",
			               (unsigned long)(len >> 10),
			               strcmp(sms[s], "0") == 0 ? "all" : sms[s]);
			gpu_figure(name, rate(q, &p, 10), "GB/s");
			if (len == 16384) {
				p.count = 2048;
				(void)snprintf(name, sizeof(name), "pages_2048_of_16KiB_%s_sms",
				               strcmp(sms[s], "0") == 0 ? "all" : sms[s]);
				gpu_figure(name, rate(q, &p, 50), "GB/s");
			}
		}
		cuda_queue_close(q);
	}
	MUST(gpu.free(src));
	MUST(gpu.free(dst));
}

static double single_rate(struct cuda_queue *q, cu_ptr dst, cu_ptr src, uint64_t len, int times,
                          bool device)
{
	uint64_t ticket = 0;
	double from = 0;

	for (int i = -2; i < times; i++) {
		if (i == 0) {
			wait_done(q, ticket);
			from = gpu_now_s();
		}
		if (device)
			MUST(cuda_queue_copy_device(q, dst, src, len, &ticket));
		else
			MUST(cuda_queue_copy(q, dst, src, len, &ticket));
	}
	wait_done(q, ticket);
	return (double)len * times / (gpu_now_s() - from) / 1e9;
}

static double single_latency(struct cuda_queue *q, cu_ptr dst, cu_ptr src, uint64_t len,
                             bool device)
{
	enum { TIMES = 2000 };
	static double us[TIMES];
	uint64_t ticket;

	for (int i = 0; i < TIMES; i++) {
		double from = gpu_now_s();

		if (device)
			MUST(cuda_queue_copy_device(q, dst, src, len, &ticket));
		else
			MUST(cuda_queue_copy(q, dst, src, len, &ticket));
		wait_done(q, ticket);
		us[i] = (gpu_now_s() - from) * 1e6;
	}
	return gpu_percentile(us, TIMES, 0.5);
}

static void single_rates(void)
{
	const uint64_t bytes = 256 * MIB;
	cu_ptr src = gpu_alloc(bytes);
	cu_ptr dst = gpu_alloc(bytes);
	uint64_t host = (uint64_t)(uintptr_t)cuda_host_alloc(bytes);
	struct cuda_queue *q;

	gpu_case("rates: single copies");
	MUST(config_set("gpu_kernel_bytes", "1T"));
	q = open_queue("64");
	for (uint64_t len = 8; len <= bytes; len = len < 4096 ? 4096 : len * 16) {
		char name[64];

		(void)snprintf(name, sizeof(name), "copy_%luB_engine", (unsigned long)len);
		gpu_figure(name, single_latency(q, dst, src, len, false), "us");
		(void)snprintf(name, sizeof(name), "copy_%luB_kernel", (unsigned long)len);
		gpu_figure(name, single_latency(q, dst, src, len, true), "us");
	}
	gpu_figure("copy_256MiB_engine", single_rate(q, dst, src, bytes, 20, false), "GB/s");
	gpu_figure("copy_256MiB_kernel", single_rate(q, dst, src, bytes, 20, true), "GB/s");
	gpu_figure("copy_256MiB_to_host", single_rate(q, host, src, bytes, 8, false), "GB/s");
	gpu_figure("copy_256MiB_from_host", single_rate(q, dst, host, bytes, 8, false), "GB/s");
	cuda_queue_close(q);
	MUST(config_set("gpu_kernel_bytes", "16K"));
}

int main(int argc, char **argv)
{
	int sock[2];
	int status;
	pid_t pid;

	rng_init(&rng, 12);
	few = argc > 1 && strcmp(argv[1], "--few") == 0;
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sock));
	pid = fork();
	if (pid == 0) {
		(void)close(sock[0]);
		child(sock[1]);
	}
	(void)close(sock[1]);
	gpu_start();
	describe_case();
	export_case(sock[0]);
	(void)close(sock[0]);
	MUST(waitpid(pid, &status, 0) != pid);
	odd_case();
	pages_case();
	if (argc > 1 && strcmp(argv[1], "--rates") == 0) {
		page_rates();
		single_rates();
	}
	return gpu_end();
}
