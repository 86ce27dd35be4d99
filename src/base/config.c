/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/log.h"

#define CONFIG_DEFAULT_FILE "/etc/wimm.conf"
enum { CONFIG_LINE_BYTES = 512, CONFIG_MAX_PROBLEMS = 8, CONFIG_PROBLEM_BYTES = 256 };
/* Longer is no line but a device, or a file of another kind. */
#define CONFIG_LONGEST_LINE_BYTES (UINT32_C(1) << 20)

struct row {
	const char *name;
	const char *env;
	const char *unit;
	const char *help;
	config_type type;
	int64_t min;
	int64_t max;
	int64_t def;
	const char *text_def;
	char *text; /* NULL: not a text. Guarded by text_lock */
};

static pthread_mutex_t text_lock = PTHREAD_MUTEX_INITIALIZER;
#define X(id, name, max_bytes, def, help) static char text_##id[max_bytes];
CONFIG_TEXT_MAP(X)
#undef X

static const struct row rows[CFG_COUNT] = {
#define X(id, name_, unit_, type_, min_, max_, def_, help_)                                        \
	[CFG_##id] = { .name = name_,                                                              \
		       .env = "WIMM_" #id,                                                         \
		       .unit = unit_,                                                              \
		       .help = help_,                                                              \
		       .type = CONFIG_##type_,                                                     \
		       .min = min_,                                                                \
		       .max = max_,                                                                \
		       .def = def_ },
	CONFIG_MAP(X)
#undef X
#define X(id, name_, max_bytes, def_, help_)                                                       \
	[CFG_##id] = { .name = name_,                                                              \
		       .env = "WIMM_" #id,                                                         \
		       .unit = "",                                                                 \
		       .help = help_,                                                              \
		       .type = CONFIG_TEXT,                                                        \
		       .max = (max_bytes)-1,                                                       \
		       .text_def = def_,                                                           \
		       .text = text_##id },
	CONFIG_TEXT_MAP(X)
#undef X
};

/* Written once by load() inside pthread_once, or later by config_set; each word stands alone, so
 * relaxed loads do. */
static _Atomic int64_t values[CFG_COUNT];
static _Atomic int sources[CFG_COUNT];

/* What load() has to say; told after it, since the log itself asks for a setting. */
static char problems[CONFIG_MAX_PROBLEMS][CONFIG_PROBLEM_BYTES];
static uint32_t problem_count;
static _Atomic uint32_t problems_untold;

static pthread_once_t once = PTHREAD_ONCE_INIT;

__attribute__((format(printf, 1, 2))) static void note(const char *fmt, ...)
{
	va_list ap;

	if (problem_count == CONFIG_MAX_PROBLEMS)
		return;
	va_start(ap, fmt);
	vsnprintf(problems[problem_count++], CONFIG_PROBLEM_BYTES, fmt, ap);
	va_end(ap);
}

static bool parse_word(config_type type, const char *text, int64_t *out)
{
	static const char *const no_yes[][2] = { { "no", "yes" },
		                                 { "off", "on" },
		                                 { "false", "true" } };

	for (uint32_t i = 0; type == CONFIG_BOOL && i < 3; i++) {
		for (uint32_t j = 0; j < 2; j++) {
			if (strcasecmp(text, no_yes[i][j]) == 0) {
				*out = j;
				return true;
			}
		}
	}
	for (int level = LOG_LEVEL_OFF; type == CONFIG_LEVEL && level <= LOG_LEVEL_DEBUG; level++) {
		if (strcasecmp(text, log_level_name((log_level)level)) == 0) {
			*out = level;
			return true;
		}
	}
	return false;
}

static bool parse_number(config_type type, const char *text, int64_t *out)
{
	static const char suffixes[] = "KMGT";
	const char *suffix;
	long long number;
	char *end;

	errno = 0;
	number = strtoll(text, &end, 10);
	if (end == text || errno != 0)
		return false;
	if (*end != '\0' && type == CONFIG_BYTES) {
		suffix = strchr(suffixes, toupper((unsigned char)*end));
		if (!suffix)
			return false;
		for (const char *s = suffixes; s <= suffix; s++) {
			if (__builtin_mul_overflow(number, 1024LL, &number))
				return false;
		}
		end++;
	}
	if (*end != '\0')
		return false;
	*out = number;
	return true;
}

static wimm_status parse(const struct row *row, const char *text, int64_t *out)
{
	int64_t value;

	if (!parse_word(row->type, text, &value) && !parse_number(row->type, text, &value))
		return WIMM_E_PARSE;
	if (value < row->min || value > row->max)
		return WIMM_E_RANGE;
	*out = value;
	return WIMM_OK;
}

static wimm_status store_text(config_id id, const char *text, config_source source)
{
	const struct row *row = &rows[id];
	size_t len = strlen(text);

	if (len > (size_t)row->max)
		return WIMM_E_RANGE;
	pthread_mutex_lock(&text_lock);
	memcpy(row->text, text, len + 1);
	pthread_mutex_unlock(&text_lock);
	atomic_store_explicit(&sources[id], (int)source, memory_order_relaxed);
	return WIMM_OK;
}

static void store(config_id id, int64_t value, config_source source)
{
	atomic_store_explicit(&values[id], value, memory_order_relaxed);
	atomic_store_explicit(&sources[id], (int)source, memory_order_relaxed);
}

/* As it may be written. */
static const char *value_text(const struct row *row, int64_t value, char out[24])
{
	if (row->type == CONFIG_BOOL)
		return value != 0 ? "yes" : "no";
	if (row->type == CONFIG_LEVEL)
		return log_level_name((log_level)value);
	snprintf(out, 24, "%lld", (long long)value);
	return out;
}

/* `where` names the source in the message: a variable, or a file and line. */
static void take(config_id id, const char *text, config_source source, const char *where)
{
	const struct row *row = &rows[id];
	char min[24], max[24], kept[24];
	int64_t value;

	if (row->type == CONFIG_TEXT) {
		if (store_text(id, text, source) != WIMM_OK)
			note("%s: %s may have %lld bytes, not %zu", where, row->name,
			     (long long)row->max, strlen(text));
		return;
	}
	if (parse(row, text, &value) == WIMM_OK) {
		store(id, value, source);
		return;
	}
	value = atomic_load_explicit(&values[id], memory_order_relaxed);
	note("%s: \"%s\" is no value for %s: %s to %s%s%s wanted; keeping %s", where, text,
	     row->name, value_text(row, row->min, min), value_text(row, row->max, max),
	     row->unit[0] ? " " : "", row->unit, value_text(row, value, kept));
}

static bool find(const char *name, config_id *out)
{
	for (uint32_t i = 0; i < CFG_COUNT; i++) {
		if (strcmp(rows[i].name, name) == 0) {
			*out = (config_id)i;
			return true;
		}
	}
	return false;
}

static char *trim(char *text)
{
	size_t len;

	while (isspace((unsigned char)*text))
		text++;
	len = strlen(text);
	while (len > 0 && isspace((unsigned char)text[len - 1]))
		text[--len] = '\0';
	return text;
}

static void take_line(char *line, const char *where)
{
	char *hash = strchr(line, '#');
	char *equals;
	config_id id;

	if (hash)
		*hash = '\0';
	line = trim(line);
	if (*line == '\0')
		return;
	equals = strchr(line, '=');
	if (!equals) {
		note("%s: \"%s\" is not of the form name = value", where, line);
		return;
	}
	*equals = '\0';
	line = trim(line);
	if (find(line, &id))
		take(id, trim(equals + 1), CONFIG_FROM_FILE, where);
	else
		note("%s: there is no setting \"%s\"; wimm info --settings lists them", where,
		     line);
}

/* False: it has no end within reason, so this is no file of settings. */
static bool skip_long_line(FILE *file, const char *where)
{
	uint32_t left = CONFIG_LONGEST_LINE_BYTES;
	int c;

	note("%s: line of %d bytes or more ignored", where, CONFIG_LINE_BYTES - 1);
	do {
		c = getc(file);
	} while (c != '\n' && c != EOF && --left != 0);
	if (left == 0)
		note("%s: nor is there an end of it: the rest is not read", where);
	return left != 0;
}

static void take_file(void)
{
	const char *named = getenv("WIMM_CONFIG");
	const char *path = named ? named : CONFIG_DEFAULT_FILE;
	char line[CONFIG_LINE_BYTES];
	char where[CONFIG_PROBLEM_BYTES / 2];
	FILE *file = fopen(path, "re");

	if (!file) {
		if (named || errno != ENOENT)
			note("settings file %s: %s", path, strerror(errno));
		return;
	}
	for (uint32_t number = 1; fgets(line, sizeof(line), file); number++) {
		snprintf(where, sizeof(where), "%s:%u", path, number);
		if (strchr(line, '\n') || feof(file))
			take_line(line, where);
		else if (!skip_long_line(file, where))
			break;
	}
	if (ferror(file)) /* such as of a folder, which can be opened */
		note("settings file %s: %s", path, strerror(errno));
	fclose(file);
}

static void load(void)
{
	problem_count = 0;
	for (uint32_t i = 0; i < CFG_COUNT; i++) {
		store((config_id)i, rows[i].def, CONFIG_FROM_DEFAULT);
		if (rows[i].type == CONFIG_TEXT)
			(void)store_text((config_id)i, rows[i].text_def, CONFIG_FROM_DEFAULT);
	}
	take_file();
	for (uint32_t i = 0; i < CFG_COUNT; i++) {
		const char *text = getenv(rows[i].env);

		if (text)
			take((config_id)i, text, CONFIG_FROM_ENV, rows[i].env);
	}
	/* [A] with [B] in ensure: the texts are complete before they are told. */
	atomic_store_explicit(&problems_untold, problem_count, memory_order_release);
}

static void ensure(void)
{
	uint32_t count;

	pthread_once(&once, load);
	/* A plain look first: this is the path of every read. */
	if (atomic_load_explicit(&problems_untold, memory_order_relaxed) == 0)
		return;
	/* [B] with [A] in load; the exchange lets exactly one thread tell. */
	count = atomic_exchange_explicit(&problems_untold, 0, memory_order_acquire);
	for (uint32_t i = 0; i < count; i++)
		LOG_WARN("%s", problems[i]);
}

int64_t config_get_i64(config_id id)
{
	ASSERT((uint32_t)id < CFG_COUNT);
	ensure();
	return atomic_load_explicit(&values[id], memory_order_relaxed);
}

uint64_t config_get_u64(config_id id)
{
	ASSERT((uint32_t)id < CFG_COUNT && rows[id].min >= 0);
	return (uint64_t)config_get_i64(id);
}

bool config_get_bool(config_id id)
{
	return config_get_i64(id) != 0;
}

void config_get_text(config_id id, char *out)
{
	ASSERT((uint32_t)id < CFG_COUNT && rows[id].type == CONFIG_TEXT);
	ensure();
	pthread_mutex_lock(&text_lock);
	memcpy(out, rows[id].text, strlen(rows[id].text) + 1);
	pthread_mutex_unlock(&text_lock);
}

bool config_info_at(uint32_t index, struct config_info *out)
{
	const struct row *row;

	if (index >= CFG_COUNT)
		return false;
	row = &rows[index];
	*out = (struct config_info){
		.name = row->name,
		.env = row->env,
		.unit = row->unit,
		.help = row->help,
		.type = row->type,
		.min = row->min,
		.max = row->max,
		.def = row->def,
		.value = config_get_i64((config_id)index),
		.source =
			(config_source)atomic_load_explicit(&sources[index], memory_order_relaxed),
		.text_def = row->text_def,
	};
	if (row->type == CONFIG_TEXT)
		config_get_text((config_id)index, out->text);
	return true;
}

const char *config_source_name(config_source source)
{
	static const char *const names[] = { "default", "file", "environment", "program" };

	return (unsigned)source < sizeof(names) / sizeof(names[0]) ? names[source] : "unknown";
}

wimm_status config_set(const char *name, const char *value)
{
	wimm_status st;
	config_id id;
	int64_t number;

	ensure();
	if (!find(name, &id))
		return WIMM_E_NOT_FOUND;
	if (rows[id].type == CONFIG_TEXT)
		return store_text(id, value, CONFIG_FROM_CALL);
	st = parse(&rows[id], value, &number);
	if (st != WIMM_OK)
		return st;
	store(id, number, CONFIG_FROM_CALL);
	if (id == CFG_LOG_LEVEL)
		log_set_level((log_level)number);
	return WIMM_OK;
}

void config_reload(void)
{
	pthread_once(&once, load);
	load();
	log_set_level((log_level)config_get_i64(CFG_LOG_LEVEL));
	ensure();
}
