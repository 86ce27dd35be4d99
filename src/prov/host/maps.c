/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/maps.h"

#include "base/alloc.h"
#include "base/log.h"
#include "mem/memfd.h"
#include "plat/rand.h"
#include "prov/host/fetch.h"
#include "prov/host/gpu.h"
#include "prov/host/path.h"

#include <endian.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* More keys than this at once are forgotten together: answers for regions long gone pile up. */
enum { MAPS_MAX = 4096 };

wimm_status host_maps_init(struct host_maps *maps)
{
	uint64_t seed;
	wimm_status st = rand_bytes(&seed, sizeof(seed)); /* the peer chooses the keys */

	if (st != WIMM_OK)
		return st;
	hash_init(&maps->by_key, seed);
	hash_init(&maps->sources, seed);
	return WIMM_OK;
}

static void map_free(struct host_map *map)
{
	if (map->map)
		memfd_unmap(map->map, map->map_bytes);
	if (map->imported)
		mem_cuda_unmap(&map->cuda);
	mem_free(map);
}

static void free_all(struct hash *table)
{
	uint32_t cursor = 0;
	uint64_t value;
	uint64_t key;

	while (hash_next(table, &cursor, &key, &value))
		map_free((struct host_map *)(uintptr_t)value);
	hash_fini(table);
	hash_init(table, table->seed);
}

void host_maps_flush(struct host_maps *maps)
{
	struct host_path *path = LIST_ENTRY(maps, struct host_path, maps);

	host_gpu_drain(path); /* they may be writing there, */
	host_fetch_drain(path); /* and reading */
	free_all(&maps->by_key);
	free_all(&maps->sources);
	maps->last = NULL;
}

void host_maps_fini(struct host_maps *maps)
{
	host_maps_flush(maps);
	hash_fini(&maps->by_key);
	hash_fini(&maps->sources);
}

/* Ask once: an entry without anything stands for the question. */
static void ask(struct host_path *path, uint64_t key, struct hash *table, enum host_packet packet)
{
	uint64_t wire = htole64(key);
	struct iovec iov = { &wire, sizeof(wire) };
	struct host_map *map = mem_calloc(1, sizeof(*map));

	if (!map)
		return;
	if (table->count >= MAPS_MAX)
		host_maps_flush(&path->maps);
	map->key = key;
	if (!host_conn_send(path->conn, packet, &iov, 1, -1) ||
	    hash_insert_ptr(table, key, map) != WIMM_OK)
		mem_free(map);
}

static bool holds(const struct host_map *map, uint64_t addr, uint64_t len_bytes)
{
	uint64_t offset = addr - map->addr; /* something huge below it */

	return map->kind != HOST_GIVE_NOTHING && offset <= map->len_bytes &&
	       len_bytes <= map->len_bytes - offset;
}

struct host_map *host_maps_find(struct host_path *path, uint64_t key, uint64_t addr,
                                uint64_t len_bytes)
{
	struct host_maps *maps = &path->maps;
	struct host_map *map = maps->last;

	if (!map || map->key != key) {
		map = hash_find_ptr(&maps->by_key, key);
		if (!map) {
			ask(path, key, &maps->by_key, HOST_PACKET_ASK);
			return NULL;
		}
		maps->last = map;
	}
	return holds(map, addr, len_bytes) ? map : NULL;
}

struct host_map *host_maps_find_gpu(struct host_path *path, uint64_t key, uint64_t addr,
                                    uint64_t len_bytes, bool *out_refused)
{
	struct host_map *map = host_maps_find(path, key, addr, len_bytes);

	*out_refused = false;
	if (map && map->kind == HOST_GIVE_CUDA)
		return map;
	map = hash_find_ptr(&path->maps.by_key, key);
	*out_refused = map && map->answered;
	return NULL;
}

struct host_map *host_maps_source(struct host_path *path, uint64_t key, uint64_t addr,
                                  uint64_t len_bytes, bool *out_refused)
{
	struct host_map *map = hash_find_ptr(&path->maps.sources, key);

	*out_refused = map && map->answered;
	if (!map)
		ask(path, key, &path->maps.sources, HOST_PACKET_ASK_SOURCE);
	return map && map->kind == HOST_GIVE_CUDA && holds(map, addr, len_bytes) ? map : NULL;
}

static void forget(struct hash *table, struct host_map *map)
{
	(void)hash_remove(table, map->key);
	map_free(map);
}

void host_maps_forget(struct host_path *path, uint64_t key)
{
	struct host_maps *maps = &path->maps;
	struct host_map *map = hash_find_ptr(&maps->by_key, key);
	struct host_map *source = hash_find_ptr(&maps->sources, key);

	if (map && map->kind == HOST_GIVE_CUDA) {
		host_gpu_drain(path);
		if (maps->last == map)
			maps->last = NULL;
		forget(&maps->by_key, map);
	}
	if (source && source->answered) {
		host_fetch_drain(path);
		forget(&maps->sources, source);
	}
}

/* Memory of a GPU. False: malformed. */
static bool map_cuda(struct host_path *path, const struct host_given *given, int fd,
                     struct host_map *map)
{
	struct mem_cuda_export e = { .vmm = given->vmm, .fd = fd, .pci = given->pci,
		                     .offset = given->offset, .bytes = given->file_bytes };
	char text[MEM_CUDA_TEXT_BYTES];

	if (given->offset > given->file_bytes ||
	    given->len_bytes > given->file_bytes - given->offset || (given->vmm && fd < 0))
		return false;
	if (path->peer_pid == getpid()) { /* another engine of this process */
		map->base = (uint8_t *)(uintptr_t)given->addr;
		map->kind = HOST_GIVE_CUDA;
		return true;
	}
	memcpy(e.handle.bytes, given->handle, sizeof(e.handle.bytes));
	if (mem_cuda_import(&e, &map->cuda, text, sizeof(text)) != WIMM_OK) {
		LOG_WARN("host: memory of a GPU of process %d: %s", (int)path->peer_pid, text);
		return true;
	}
	map->imported = true;
	map->base = (uint8_t *)(uintptr_t)(map->cuda.base + given->offset);
	map->kind = HOST_GIVE_CUDA;
	return true;
}

static bool given_to(struct host_path *path, struct hash *table, const struct host_given *given,
                     int fd)
{
	struct host_maps *maps = &path->maps;
	struct host_map *map = hash_find_ptr(table, given->key);
	uint64_t gate = atomic_load_explicit(&path->tx.lane->gate, memory_order_seq_cst);

	if (!map || map->kind != HOST_GIVE_NOTHING)
		return true; /* forgotten meanwhile */
	prov_obj_ready(&path->obj); /* who waits for it */
	map->answered = true;
	if (given->kind == HOST_GIVE_OFFERS)
		path->pull_cards = true;
	if (given->kind == HOST_GIVE_NOTHING || given->kind == HOST_GIVE_OFFERS)
		return true;
	if (given->gate != gate) {
		host_maps_flush(maps); /* taken back already: ask anew */
		return true;
	}
	if (maps->gate != gate) {
		struct host_map *keep = map;

		hash_remove(table, given->key);
		host_maps_flush(maps);
		map = keep;
		if (hash_insert_ptr(table, given->key, map) != WIMM_OK) {
			map_free(map);
			return true;
		}
		maps->gate = gate;
	}
	if (given->kind == HOST_GIVE_MEMFD) {
		if (fd < 0 || given->offset > given->file_bytes ||
		    given->len_bytes > given->file_bytes - given->offset ||
		    memfd_check(fd, given->file_bytes) != WIMM_OK)
			return false;
		if (memfd_map(fd, given->file_bytes, &map->map) != WIMM_OK) {
			LOG_WARN("host: cannot map %zu bytes of process %d",
			         (size_t)given->file_bytes, (int)path->peer_pid);
			return true; /* other ways remain */
		}
		map->map_bytes = given->file_bytes;
		map->base = (uint8_t *)map->map + given->offset;
	}
	map->addr = given->addr;
	map->len_bytes = given->len_bytes;
	if (given->kind == HOST_GIVE_CUDA)
		return map_cuda(path, given, fd, map);
	map->kind = given->kind;
	return true;
}

bool host_maps_given(struct host_path *path, const struct host_given *given, int fd)
{
	return given_to(path, &path->maps.by_key, given, fd);
}

bool host_maps_given_source(struct host_path *path, const struct host_given *given, int fd)
{
	if (given->kind != HOST_GIVE_NOTHING && given->kind != HOST_GIVE_CUDA)
		return false;
	return given_to(path, &path->maps.sources, given, fd);
}
