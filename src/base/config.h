/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CONFIG_H
#define BASE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config_table.h"
#include "wimm/status.h"

/* The settings: environment over file ($WIMM_CONFIG, else /etc/wimm.conf, lines `name = value`)
 * over default. Read once, at first use. A value that is malformed or out of range is reported in
 * the log and the next lower source counts. Thread: any. */
typedef enum {
#define X(id, name, unit, type, min, max, def, help) CFG_##id,
	CONFIG_MAP(X)
#undef X
#define X(id, name, max_bytes, def, help) CFG_##id,
	CONFIG_TEXT_MAP(X)
#undef X
	CFG_COUNT,
} config_id;

typedef enum {
	CONFIG_INT,
	CONFIG_BYTES, /* takes the suffixes K, M, G, T (powers of 1024) */
	CONFIG_BOOL,  /* 0, 1, no, yes, off, on, false, true */
	CONFIG_LEVEL, /* a number or a name of base/log.h */
	CONFIG_TEXT,  /* up to `max` bytes of anything but '#' and line ends */
} config_type;

typedef enum {
	CONFIG_FROM_DEFAULT,
	CONFIG_FROM_FILE,
	CONFIG_FROM_ENV,
	CONFIG_FROM_CALL,
} config_source;

/* Of a text setting the numbers are 0 but for `max`. */
struct config_info {
	const char *name;
	const char *env;
	const char *unit; /* "" when it has none */
	const char *help;
	config_type type;
	int64_t min;
	int64_t max;
	int64_t def;
	int64_t value;
	config_source source;
	const char *text_def; /* NULL: not a text */
	char text[CONFIG_TEXT_BYTES];
};

int64_t config_get_i64(config_id id);
/* For settings whose range has no negative values. */
uint64_t config_get_u64(config_id id);
bool config_get_bool(config_id id);
/* A text setting. out has room for CONFIG_TEXT_BYTES. */
void config_get_text(config_id id, char *out);

/* Row `index` of the table with its present value; false behind the last. */
bool config_info_at(uint32_t index, struct config_info *out);
const char *config_source_name(config_source source);

/* Over everything else, from the program itself. value: as in the file.
 * Returns OK, E_NOT_FOUND (no such name), E_PARSE, E_RANGE. */
WIMM_MUST_CHECK wimm_status config_set(const char *name, const char *value);

/* Reads environment and file again and forgets config_set. For tests: other threads may see a
 * mixture meanwhile. */
void config_reload(void);

#endif
