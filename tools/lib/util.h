/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_UTIL_H
#define TOOLS_LIB_UTIL_H

#include <wimm/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel;

#define STATUS_FAILED 1 /* exit statuses: the run failed, the command line was wrong */
#define STATUS_USAGE  2

/* Ends the program with a line on stderr, telling the other side first if there is one. */
_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Who is told when this thread dies; NULL: nobody. */
void die_tells(struct channel *channel);
/* Dies of any status but OK, with the library's own words. */
void must(wimm_status status, const char *what);
void *must_alloc(size_t count, size_t bytes); /* zeroed */

uint64_t now_ns(void);
double cpu_s(void); /* user and system time of this process so far */

/* "64", "64K", "1M", "2G": powers of 1024. */
bool parse_size(const char *text, uint64_t *out);
bool parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out);
/* 65536 as "64K"; sizes that are no whole number of a unit in bytes. */
const char *size_text(uint64_t bytes, char out[24]);

/* Binary as text and back; false: not hexadecimal, or not that long. */
void hex_encode(const uint8_t *bytes, size_t len, char *out);
bool hex_decode(const char *text, uint8_t *out, size_t room, size_t *out_len);

#endif
