/* logs_priv - what logs.c (writing) and logs_read.c (reading) share. */
#pragma once

#include "host/worker/logs.h"

#define LOGS_NAME_LEN (20 + sizeof(".jsonl"))

struct segment {
	uint64_t base; /* offset where it begins: its name */
	uint64_t size; /* bytes of whole lines in it */
};

struct logs_stream {
	struct logrec_splitter split;
	uint64_t last_ms; /* when its last byte came */
};

struct logs {
	int dir; /* -1: there is none, and no segment */
	int fd;	 /* of the newest segment, to append; -1: not open */
	uint64_t instance;
	bool retired;
	uint64_t end; /* offset behind all records, lost ones too */
	bool ended;
	bool news;				/* written since the readers were woken */
	bool sealed;				/* the newest segment cannot be continued */
	struct segment segs[LOGS_SEGMENTS_MAX]; /* by base, the newest last */
	size_t n_segs;
	struct logs_stream streams[LOG_STREAMS];
	struct buf out;	   /* whole lines on their way to the disk; empty between calls */
	uint64_t out_from; /* offset where the first of them begins */
	struct {
		uint64_t records; /* not on disk; 0: none are lost */
		uint64_t from;	  /* offset of the first */
		uint64_t retry_ms;
		int why; /* positive errno */
	} lost;
	struct logs_reader *readers;
};

void logs_segment_name(uint64_t base, char ret[static LOGS_NAME_LEN]);

/* logs_read.c, for the writer */

/* The segment was removed: its readers give back their descriptors. */
void logs_readers_lose(struct logs *l, uint64_t base);
/* Calls wake of every reader that waits. */
void logs_readers_wake(struct logs *l);
/* File offset just behind the record that logs_reader_next gave last. */
uint64_t logs_reader_offset(const struct logs_reader *r);
