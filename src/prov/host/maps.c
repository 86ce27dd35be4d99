/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/host/maps.h"

#include "base/alloc.h"
#include "base/log.h"
#include "mem/memfd.h"
#include "plat/rand.h"
#include "prov/host/path.h"

#include <endian.h>
#include <string.h>
#include <sys/uio.h>

/* More keys than this at once are forgotten together: answers for regions long gone pile up. */
enum { MAPS_MAX = 4096 };

wimm_status host_maps_init(struct host_maps *maps)
{
	uint64_t seed;
	wimm_status st = rand_bytes(&seed, sizeof(seed)); /* the peer chooses the keys */

	if (st != WIMM_OK)
		return st;
	hash_init(&maps->by_key, seed);
	return WIMM_OK;
}

static void map_free(struct host_map *map)
{
	if (map->map)
		memfd_unmap(map->map, map->map_bytes);
	mem_free(map);
}

void host_maps_flush(struct host_maps *maps)
{
	uint32_t cursor = 0;
	uint64_t value;
	uint64_t key;

	while (hash_next(&maps->by_key, &cursor, &key, &value))
		map_free((struct host_map *)(uintptr_t)value);
	hash_fini(&maps->by_key);
	hash_init(&maps->by_key, maps->by_key.seed);
	maps->last = NULL;
}

void host_maps_fini(struct host_maps *maps)
{
	host_maps_flush(maps);
	hash_fini(&maps->by_key);
}

/* Ask once: an entry without anything stands for the question. */
static void ask(struct host_path *path, uint64_t key)
{
	struct host_maps *maps = &path->maps;
	uint64_t wire = htole64(key);
	struct iovec iov = { &wire, sizeof(wire) };
	struct host_map *map = mem_calloc(1, sizeof(*map));

	if (!map)
		return;
	if (maps->by_key.count >= MAPS_MAX)
		host_maps_flush(maps);
	map->key = key;
	if (!host_conn_send(path->conn, HOST_PACKET_ASK, &iov, 1, -1) ||
	    hash_insert_ptr(&maps->by_key, key, map) != WIMM_OK)
		mem_free(map);
}

struct host_map *host_maps_find(struct host_path *path, uint64_t key, uint64_t addr,
                                uint64_t len_bytes)
{
	struct host_maps *maps = &path->maps;
	struct host_map *map = maps->last;
	uint64_t offset;

	if (!map || map->key != key) {
		map = hash_find_ptr(&maps->by_key, key);
		if (!map) {
			ask(path, key);
			return NULL;
		}
		maps->last = map;
	}
	offset = addr - map->addr; /* something huge below it */
	if (map->kind == HOST_GIVE_NOTHING || offset > map->len_bytes ||
	    len_bytes > map->len_bytes - offset)
		return NULL;
	return map;
}

bool host_maps_given(struct host_path *path, const struct host_given *given, int fd)
{
	struct host_maps *maps = &path->maps;
	struct host_map *map = hash_find_ptr(&maps->by_key, given->key);
	uint64_t gate = atomic_load_explicit(&path->tx.lane->gate, memory_order_seq_cst);

	if (!map || map->kind != HOST_GIVE_NOTHING || given->kind == HOST_GIVE_NOTHING)
		return true; /* forgotten meanwhile, or nothing */
	if (given->gate != gate) {
		host_maps_flush(maps); /* taken back already: ask anew */
		return true;
	}
	if (maps->gate != gate) {
		struct host_map *keep = map;

		hash_remove(&maps->by_key, given->key);
		host_maps_flush(maps);
		map = keep;
		if (hash_insert_ptr(&maps->by_key, given->key, map) != WIMM_OK) {
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
	map->kind = given->kind;
	return true;
}
