/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/util.h"

#include "lib/channel.h"

#include <wimm/engine.h>

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <time.h>

static _Thread_local struct channel *told;

void die_tells(struct channel *channel)
{
	told = channel;
}

void die(const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	(void)fprintf(stderr, "wimm: %s\n", text);
	if (told != NULL)
		channel_tell_error(told, text);
	exit(STATUS_FAILED);
}

void must(wimm_status status, const char *what)
{
	const char *text = wimm_last_error_text();

	if (status == WIMM_OK)
		return;
	die("%s: %s (%s)%s%s", what, wimm_status_text(status), wimm_status_name(status),
	    text[0] != '\0' ? ": " : "", text);
}

void *must_alloc(size_t count, size_t bytes)
{
	void *p = calloc(count != 0 ? count : 1, bytes);

	if (p == NULL)
		die("out of memory for %zu times %zu bytes", count, bytes);
	return p;
}

uint64_t now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double seconds(const struct timeval *tv)
{
	return (double)tv->tv_sec + (double)tv->tv_usec * 1e-6;
}

double cpu_s(void)
{
	struct rusage usage;

	(void)getrusage(RUSAGE_SELF, &usage);
	return seconds(&usage.ru_utime) + seconds(&usage.ru_stime);
}

bool parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	unsigned long long value;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (end == text || *end != '\0' || errno != 0 || text[0] == '-' || value < min ||
	    value > max)
		return false;
	*out = value;
	return true;
}

bool parse_size(const char *text, uint64_t *out)
{
	static const char units[] = "KMGT";
	unsigned long long value;
	const char *unit;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (end == text || errno != 0 || text[0] == '-')
		return false;
	unit = isalpha((unsigned char)*end) ? strchr(units, toupper((unsigned char)*end)) : NULL;
	if (unit != NULL) {
		unsigned shift = 10 * (unsigned)(unit - units + 1);

		if (value > UINT64_MAX >> shift)
			return false;
		value <<= shift;
		end++;
		if (strcasecmp(end, "iB") == 0)
			end += 2;
	}
	if (*end != '\0')
		return false;
	*out = value;
	return true;
}

const char *size_text(uint64_t bytes, char out[24])
{
	static const char units[] = " KMGT";
	unsigned i = 0;

	while (bytes != 0 && bytes % 1024 == 0 && i < 4) {
		bytes /= 1024;
		i++;
	}
	(void)snprintf(out, 24, i == 0 ? "%" PRIu64 "%.0s" : "%" PRIu64 "%.1s", bytes, &units[i]);
	return out;
}

void hex_encode(const uint8_t *bytes, size_t len, char *out)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < len; i++) {
		out[2 * i] = digits[bytes[i] >> 4];
		out[2 * i + 1] = digits[bytes[i] & 15];
	}
	out[2 * len] = '\0';
}

static int nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hex_decode(const char *text, uint8_t *out, size_t room, size_t *out_len)
{
	size_t len = text != NULL ? strlen(text) : 1;

	if (len % 2 != 0 || len / 2 > room)
		return false;
	for (size_t i = 0; i < len / 2; i++) {
		int high = nibble(text[2 * i]);
		int low = nibble(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		out[i] = (uint8_t)(high << 4 | low);
	}
	*out_len = len / 2;
	return true;
}
