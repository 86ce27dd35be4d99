/* SPDX-License-Identifier: Apache-2.0 */
/* How a path starts: the dialler makes the shared area and passes its descriptor; nonces written
 * through it and read back show that both ends have it; a nonce in each process's own memory, read
 * by the other one, shows who may fetch from whom. Nothing is concluded from an address. */
#include "prov/host/path.h"

#include "base/bytes.h"
#include "base/log.h"
#include "mem/memfd.h"
#include "plat/rand.h"
#include "prov/host/foreign.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* The packets, all of one form. 1: dialler, with the area's descriptor. 2: acceptor. 3: dialler.
 * 4: acceptor; both are up then. */
struct join {
	uint8_t step;
	uint8_t echo[HOST_NONCE_BYTES]; /* 2, 3: what the other side wrote through the area */
	uint64_t probe_addr;            /* 1, 2: of the probe in the sender's own memory */
	uint32_t fetch_errno;           /* 2, 3: of reading the other side's probe */
	uint8_t fetched[HOST_NONCE_BYTES];
	uint32_t store_errno; /* 2, 3: of writing into the other side's probe */
	uint8_t stored[HOST_NONCE_BYTES];
	uint8_t fetch_right; /* 3, 4: what the other side fetched was right */
	uint8_t store_right; /* 3, 4: what the other side wrote has come */
};

enum { JOIN_BYTES = 1 + HOST_NONCE_BYTES + 8 + 2 * (4 + HOST_NONCE_BYTES) + 2 };

static void join_encode(const struct join *j, uint8_t *out)
{
	struct bw w;

	bw_init(&w, out, JOIN_BYTES);
	bw_u8(&w, j->step);
	bw_bytes(&w, j->echo, sizeof(j->echo));
	bw_u64(&w, j->probe_addr);
	bw_u32(&w, j->fetch_errno);
	bw_bytes(&w, j->fetched, sizeof(j->fetched));
	bw_u32(&w, j->store_errno);
	bw_bytes(&w, j->stored, sizeof(j->stored));
	bw_u8(&w, j->fetch_right);
	bw_u8(&w, j->store_right);
}

static bool join_decode(const uint8_t *in, size_t len, struct join *out)
{
	struct br r;

	br_init(&r, in, len);
	out->step = br_u8(&r);
	br_bytes(&r, out->echo, sizeof(out->echo));
	out->probe_addr = br_u64(&r);
	out->fetch_errno = br_u32(&r);
	br_bytes(&r, out->fetched, sizeof(out->fetched));
	out->store_errno = br_u32(&r);
	br_bytes(&r, out->stored, sizeof(out->stored));
	out->fetch_right = br_u8(&r);
	out->store_right = br_u8(&r);
	return br_done(&r);
}

static wimm_status broken(struct host_path *path, const char *what)
{
	prov_fail_set(&path->fail, WIMM_E_PROTOCOL, 0, "joining a path: %s", what);
	return WIMM_E_PROTOCOL;
}

static wimm_status conn_over(struct host_path *path)
{
	host_conn_fail_text(path->conn, &path->fail, WIMM_E_PATH_LOST, "joining a path");
	return WIMM_E_PATH_LOST;
}

static void attach(struct host_path *path, struct host_area *area)
{
	unsigned int side = host_path_side(path);

	path->area = area;
	path->peer_pid = path->conn->pid;
	path->pidfd = host_foreign_pidfd(path->peer_pid);
	path->tx.lane = &area->lane[side];
	path->rx.lane = &area->lane[1 - side];
}

/* Write a nonce for the other side, and keep it in its place until it comes back. */
static bool nonce_write(struct host_path *path)
{
	uint64_t nonce[HOST_NONCE_BYTES / 8];

	if (rand_bytes(nonce, sizeof(nonce)) != WIMM_OK)
		return false;
	memcpy(path->nonce, nonce, sizeof(nonce));
	for (size_t i = 0; i < HOST_NONCE_BYTES / 8; i++)
		atomic_store_explicit(&path->area->nonce[1 - host_path_side(path)][i], nonce[i],
		                      memory_order_relaxed);
	return true;
}

static void nonce_read(const struct host_path *path, uint8_t *out)
{
	uint64_t nonce[HOST_NONCE_BYTES / 8];

	for (size_t i = 0; i < HOST_NONCE_BYTES / 8; i++)
		nonce[i] = atomic_load_explicit(&path->area->nonce[host_path_side(path)][i],
		                                memory_order_relaxed);
	memcpy(out, nonce, sizeof(nonce));
}

/* AGAIN: the connection is over, but why may be said in what is not read yet. */
static wimm_status say(struct host_path *path, const struct join *j, int fd)
{
	uint8_t bytes[JOIN_BYTES];
	struct iovec iov = { bytes, sizeof(bytes) };

	join_encode(j, bytes);
	if (host_conn_send(path->conn, HOST_PACKET_JOIN, &iov, 1, fd))
		return WIMM_OK;
	/* A fresh connection always has room for this, so that it is not full but over: a dialler
	 * that is turned away may be so before it has said more than its hello. */
	return path->conn->broken ? WIMM_AGAIN : conn_over(path);
}

/* Fill in what this side found out about reaching the other one's memory. */
static void try_probe(struct host_path *path, uint64_t addr, struct join *out)
{
	int code = EOPNOTSUPP;

	/* Where the setting says so the system call is not even tried: a filter may kill for it. */
	if (host_dev_of(&path->obj)->way != HOST_WAY_RING)
		code = host_foreign_fetch(path->peer_pid,
		                          addr + offsetof(struct host_probe, read_me), out->fetched,
		                          sizeof(out->fetched));
	out->fetch_errno = (uint32_t)code;
	path->ways.rx_offer_errno = code;
	out->store_errno = EOPNOTSUPP;
	if (host_dev_of(&path->obj)->way != HOST_WAY_PUSH ||
	    rand_bytes(out->stored, sizeof(out->stored)) != WIMM_OK)
		return;
	code = host_foreign_store(path->peer_pid, path->pidfd,
	                          addr + offsetof(struct host_probe, write_me), out->stored,
	                          sizeof(out->stored));
	out->store_errno = (uint32_t)code;
	path->ways.tx_store_errno = code;
}

/* What the other side found out about reaching this one's. */
static void judge_probe(struct host_path *path, const struct join *in, struct join *out)
{
	bool way = host_dev_of(&path->obj)->way != HOST_WAY_RING;

	out->fetch_right = in->fetch_errno == 0 &&
	                   memcmp(in->fetched, path->probe.read_me, sizeof(in->fetched)) == 0;
	out->store_right = in->store_errno == 0 &&
	                   memcmp(in->stored, path->probe.write_me, sizeof(in->stored)) == 0;
	path->ways.tx_offer = out->fetch_right && way;
	path->ways.tx_offer_errno = (int)in->fetch_errno;
}

/* What the other side thinks of what this one did. */
static void learn_verdict(struct host_path *path, const struct join *in)
{
	path->ways.rx_offer = in->fetch_right == 1;
	path->ways.tx_store = in->store_right == 1 && host_dev_of(&path->obj)->way == HOST_WAY_PUSH;
}

const char *host_join_text(struct host_path *path)
{
	const struct host_ways *ways = &path->ways;
	const char *shared = host_dev_of(&path->obj)->way == HOST_WAY_AUTO
	                             ? "memory of wimm_alloc() is shared; other "
	                             : "";
	size_t room = sizeof(path->ways_text);

	if (ways->tx_store)
		(void)snprintf(path->ways_text, room, "%smemory is written into", shared);
	else if (ways->tx_offer)
		(void)snprintf(path->ways_text, room, "%smemory is fetched by it", shared);
	else
		(void)snprintf(path->ways_text, room, "%smemory goes through the ring: %s", shared,
		               host_dev_of(&path->obj)->way == HOST_WAY_RING
		                       ? "setting host_way"
		                       : host_foreign_reason(ways->tx_offer_errno));
	return path->ways_text;
}

/* Dialler: make the area, say hello. */
static wimm_status start(struct host_path *path)
{
	struct join j = { .step = 1, .probe_addr = (uint64_t)(uintptr_t)&path->probe };
	wimm_status st;
	void *area;
	int code = 0;
	int fd;

	st = host_conn_dial(host_dev_of(&path->obj), &path->remote, HOST_CONN_PATH, path->token,
	                    &path->obj, &path->conn, &path->fail);
	if (st == WIMM_AGAIN) {
		if (!path->obj.expired)
			prov_obj_ready(&path->obj);
		return st;
	}
	if (st != WIMM_OK)
		return st;
	path->join = HOST_JOIN_WAIT;
	st = memfd_make("wimm-path", sizeof(struct host_area), &fd, &code);
	if (st == WIMM_OK) {
		st = memfd_map(fd, sizeof(struct host_area), &area);
		if (st != WIMM_OK)
			(void)close(fd);
	}
	if (st != WIMM_OK) {
		prov_fail_set(&path->fail, st, code, "no shared memory of %zu bytes for a path",
		              sizeof(struct host_area));
		return st;
	}
	attach(path, area);
	atomic_store_explicit(&path->area->magic, HOST_AREA_MAGIC, memory_order_relaxed);
	st = nonce_write(path) && rand_bytes(&path->probe, sizeof(path->probe)) == WIMM_OK
	             ? say(path, &j, fd)
	             : WIMM_E_SYSTEM;
	(void)close(fd); /* the mapping and the packet keep it */
	return st == WIMM_OK ? WIMM_AGAIN : st;
}

/* Acceptor: take the area, answer. */
static wimm_status answer(struct host_path *path, const struct join *in, int fd)
{
	struct join j = { .step = 2, .probe_addr = (uint64_t)(uintptr_t)&path->probe };
	void *area;

	if (fd < 0 || memfd_check(fd, sizeof(struct host_area)) != WIMM_OK)
		return broken(path, "no sealed shared memory of the right size came");
	if (memfd_map(fd, sizeof(struct host_area), &area) != WIMM_OK) {
		prov_fail_set(&path->fail, WIMM_E_NOMEM, 0, "cannot map the shared memory");
		return WIMM_E_NOMEM;
	}
	attach(path, area);
	if (atomic_load_explicit(&path->area->magic, memory_order_relaxed) != HOST_AREA_MAGIC)
		return broken(path, "the shared memory is not laid out as this version has it");
	if (!nonce_write(path) || rand_bytes(&path->probe, sizeof(path->probe)) != WIMM_OK)
		return WIMM_E_SYSTEM;
	nonce_read(path, j.echo);
	try_probe(path, in->probe_addr, &j);
	return say(path, &j, -1);
}

static bool echo_right(const struct host_path *path, const struct join *in)
{
	return memcmp(in->echo, path->nonce, sizeof(in->echo)) == 0;
}

/* One packet of the four. OK: both ends are ready. */
static wimm_status heard(struct host_path *path, const struct join *in, int fd)
{
	struct join j = { 0 };
	wimm_status st;

	if (!path->active && !path->area) {
		if (in->step != 1)
			return broken(path, "a packet out of turn");
		st = answer(path, in, fd);
		return st == WIMM_OK ? WIMM_AGAIN : st;
	}
	if (in->step == 4 && path->active && path->echoed) {
		learn_verdict(path, in);
		return WIMM_OK;
	}
	if (in->step != (path->active ? 2 : 3) || path->echoed)
		return broken(path, "a packet out of turn");
	if (!echo_right(path, in))
		return broken(path,
		              "the nonce written through the shared memory did not come back");
	path->echoed = true;
	j.step = (uint8_t)(in->step + 1);
	judge_probe(path, in, &j);
	if (path->active) {
		nonce_read(path, j.echo);
		try_probe(path, in->probe_addr, &j);
	} else {
		learn_verdict(path, in);
	}
	st = say(path, &j, -1);
	return st == WIMM_OK && path->active ? WIMM_AGAIN : st;
}

wimm_status host_join_step(struct host_path *path)
{
	uint8_t packet[1 + JOIN_BYTES];
	wimm_status st = WIMM_AGAIN;
	struct join in;

	if (path->join == HOST_JOIN_DIALLING) {
		st = start(path);
		if (st != WIMM_AGAIN || path->join == HOST_JOIN_DIALLING)
			return st;
	}
	while (st == WIMM_AGAIN && path->conn->can_read) {
		int fd;
		ssize_t got = host_conn_recv(path->conn, packet, sizeof(packet), &fd);

		if (got == 0)
			return path->conn->broken ? conn_over(path) : WIMM_AGAIN;
		if (got < 0) {
			st = conn_over(path);
		} else if (packet[0] == HOST_PACKET_REFUSED && got == 2) {
			st = WIMM_E_PEER_REFUSED;
			prov_fail_set(&path->fail, st, 0, "%s", host_refusal_text(packet[1]));
		} else if (packet[0] != HOST_PACKET_JOIN ||
		           !join_decode(packet + 1, (size_t)got - 1, &in)) {
			st = broken(path, "a packet of another kind");
		} else {
			st = heard(path, &in, fd);
		}
		if (fd >= 0)
			(void)close(fd);
	}
	if (st == WIMM_OK) {
		path->join = HOST_JOIN_DONE;
		LOG_INFO("host: to process %d: %s", (int)path->peer_pid, host_join_text(path));
	}
	return st;
}

void host_join_fini(struct host_path *path)
{
	if (path->area)
		memfd_unmap(path->area, sizeof(*path->area));
	path->area = NULL;
	if (path->pidfd >= 0)
		(void)close(path->pidfd);
	path->pidfd = -1;
}
