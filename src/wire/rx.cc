/* How it works
 *
 * The pattern is rewritten for RE2 (rx_syntax.h) and compiled in up to three forms: the exact one;
 * the tagged one when it has \b or \B, for lines that are not ASCII; the scan one when rx_scan is
 * first asked. Where every match contains one of a few known literals (rx_literal.h), rx_scan looks
 * for those instead, by a rare byte or rare pairs of bytes.
 *
 * No exceptions cross this file: RE2 throws none, and memory that is out ends the process as
 * everywhere (base/mem.h).
 */
extern "C" {
#include "base/buf.h"
#include "base/err.h"
}
#include "wire/rx.h"

#include <re2/re2.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "wire/rx_syntax.h"

using re2::RE2;
using re2::StringPiece;

namespace
{

/* RE2 shares this out between the program and the caches of its automata. Rust's limit of 10 MiB
 * for the program is met by patterns of a quarter of the size ("\w{400}" fits here, "\w{100}"
 * there). */
constexpr int64_t RE2_MEMORY = 10 << 20;

RE2::Options options(unsigned flags, bool scan)
{
	RE2::Options o;

	o.set_log_errors(false);
	o.set_max_mem(RE2_MEMORY);
	o.set_never_nl(scan);
	if (flags & RX_LITERAL) {
		o.set_literal(true);
		o.set_case_sensitive(!(flags & RX_IGNORE_CASE));
	}
	return o;
}

int refuse(const RE2 &re, struct err *e)
{
	std::string why = re.error();

	if (re.error_code() == RE2::ErrorPatternTooLarge || re.error_code() == RE2::ErrorRepeatSize)
		why = "its compiled form is too big (counted repetitions multiply)";
	else if (re.error_code() == RE2::ErrorBadCharRange)
		why = "there is no such Unicode property or range: " + re.error_arg();
	return err_set(e, "S217", EINVAL, "pattern does not compile: %s", why.c_str());
}

/* --- all code points, in order, as text --- */

void append_utf8(std::string &s, uint32_t c)
{
	if (c < 0x80) {
		s += static_cast<char>(c);
	} else if (c < 0x800) {
		s += static_cast<char>(0xc0 | c >> 6);
		s += static_cast<char>(0x80 | (c & 0x3f));
	} else if (c < 0x10000) {
		s += static_cast<char>(0xe0 | c >> 12);
		s += static_cast<char>(0x80 | (c >> 6 & 0x3f));
		s += static_cast<char>(0x80 | (c & 0x3f));
	} else {
		s += static_cast<char>(0xf0 | c >> 18);
		s += static_cast<char>(0x80 | (c >> 12 & 0x3f));
		s += static_cast<char>(0x80 | (c >> 6 & 0x3f));
		s += static_cast<char>(0x80 | (c & 0x3f));
	}
}

std::string all_code_points()
{
	std::string s;

	s.reserve(4500000);
	for (uint32_t c = 0; c <= 0x10ffff; c++)
		if (c < 0xd800 || c >= 0xe000)
			append_utf8(s, c);
	return s;
}

/* Bytes of the valid character that begins with `lead`. */
size_t char_len(char lead)
{
	auto b = static_cast<unsigned char>(lead);

	return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

uint32_t char_at(const char *s)
{
	size_t n = char_len(*s);
	auto c = static_cast<uint32_t>(static_cast<unsigned char>(*s));

	if (n > 1)
		c &= 0x7f >> n;
	for (size_t i = 1; i < n; i++)
		c = c << 6 | (static_cast<unsigned char>(s[i]) & 0x3f);
	return c;
}

/* An rx_eval_class. */
int eval_class(const char *re2_class, struct rx_set *ret, struct err *e)
{
	RE2 re(std::string("(?:") + re2_class + ")+", options(0, false));
	StringPiece m;
	size_t from = 0;

	if (!re.ok())
		return refuse(re, e);
	std::string text = all_code_points();
	while (re.Match(text, from, text.size(), RE2::UNANCHORED, &m, 1) && !m.empty()) {
		const char *last = m.data() + m.size() - 1;

		while ((*last & 0xc0) == 0x80)
			last--;
		rx_set_add(ret, char_at(m.data()), char_at(last));
		from = static_cast<size_t>(m.data() + m.size() - text.data());
	}
	return 0;
}

/* --- looking for literals --- */

/* Bytes by how often they occur in programs and prose, the commonest first; all others are rare. */
const char COMMON[] =
	" etaoinsrlcdu\nmpfh_gby.,v\tw()-\"0=k;:'/1x*2T>SE<AC3I#RN[]LDPOM456{}789B+FjzqUHGVW$"
	"&@!|KYJX\\%QZ?`~^\r";

int commonness(char b)
{
	const char *p = b ? strchr(COMMON, b) : nullptr;

	return p ? static_cast<int>(sizeof(COMMON)) - static_cast<int>(p - COMMON) : 0;
}

char lower(char b)
{
	return b >= 'A' && b <= 'Z' ? static_cast<char>(b | 0x20) : b;
}

char upper(char b)
{
	return b >= 'a' && b <= 'z' ? static_cast<char>(b & ~0x20) : b;
}

/* One literal, its case as it is: by its rarest byte. */
struct one_literal {
	std::string text;
	size_t rare = 0; /* the place of that byte */

	void set(std::string t)
	{
		text = std::move(t);
		for (size_t i = 1; i < text.size(); i++)
			if (commonness(text[i]) < commonness(text[rare]))
				rare = i;
	}

	/* The first occurrence in [p, end), or NULL. When the rare byte turns out to be common
	 * here, the C library's search goes on. */
	const char *find(const char *p, const char *end) const
	{
		const size_t len = text.size();
		const char *start = p;
		size_t misses = 0;

		if (static_cast<size_t>(end - p) < len)
			return nullptr;
		for (p += rare;;) {
			const char *last = end - (len - rare); /* where the byte may be at most */

			if (p > last)
				return nullptr;
			p = static_cast<const char *>(
				memchr(p, text[rare], static_cast<size_t>(last - p) + 1));
			if (!p)
				return nullptr;
			if (memcmp(p - rare, text.data(), len) == 0)
				return p - rare;
			p++;
			if (++misses > 64 && misses * 32 > static_cast<size_t>(p - start))
				return static_cast<const char *>(memmem(p - rare,
					static_cast<size_t>(end - p) + rare, text.data(), len));
		}
	}
};

/* Looks for any of a few bytes, sixty-four places at a time. */
struct any_byte {
	static constexpr size_t BYTES_MAX = 6;
	typedef unsigned char vec __attribute__((vector_size(16)));

	unsigned char bytes[BYTES_MAX];
	size_t n = 0;

	/* False when there is no room. */
	bool add(char b)
	{
		auto byte = static_cast<unsigned char>(b);

		if (memchr(bytes, byte, n))
			return true;
		if (n == BYTES_MAX)
			return false;
		bytes[n++] = byte;
		return true;
	}

	/* Where the first byte of sixteen is that is wanted, or 16. */
	size_t first_of(const char *p, const vec *wanted) const
	{
		vec block, hits = {};
		uint64_t half[2];

		memcpy(&block, p, sizeof(block));
		for (size_t i = 0; i < n; i++)
			hits |= reinterpret_cast<vec>(block == wanted[i]);
		memcpy(half, &hits, sizeof(half));
		static_assert(
			__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bytes are counted from below");
		if (half[0])
			return static_cast<size_t>(__builtin_ctzll(half[0])) / 8;
		return half[1] ? 8 + static_cast<size_t>(__builtin_ctzll(half[1])) / 8 : 16;
	}

	const char *find(const char *p, const char *end) const
	{
		vec wanted[BYTES_MAX];
		size_t at;

		for (size_t i = 0; i < n; i++)
			wanted[i] = vec{} + bytes[i];
		for (; end - p >= 64; p += 64) {
			vec block[4], hits = {};
			uint64_t any[2];

			memcpy(block, p, sizeof(block));
			for (size_t i = 0; i < n; i++)
				for (const vec &v : block)
					hits |= reinterpret_cast<vec>(v == wanted[i]);
			memcpy(any, &hits, sizeof(any));
			if (any[0] | any[1])
				break;
		}
		for (; end - p >= 16; p += 16)
			if ((at = first_of(p, wanted)) < 16)
				return p + at;
		for (; p < end; p++)
			if (memchr(bytes, static_cast<unsigned char>(*p), n))
				return p;
		return nullptr;
	}
};

/* Several literals, or one in either case: by the rarest byte of each as long as that does well,
 * else by a set of pairs of bytes. */
struct some_literals {
	struct literal {
		std::string text;  /* lower case if fold */
		size_t rare, pair; /* the places of its rarest byte and pair */
		bool fold;

		/* Is it in [begin, end), with its byte `at` at p? */
		bool is_at(const char *begin, const char *p, const char *end, size_t at) const
		{
			if ((fold ? lower(*p) : *p) != text[at])
				return false;
			if (static_cast<size_t>(p - begin) < at ||
				static_cast<size_t>(end - p) < text.size() - at)
				return false;
			p -= at;
			if (!fold)
				return memcmp(p, text.data(), text.size()) == 0;
			for (size_t i = 0; i < text.size(); i++)
				if (lower(p[i]) != text[i])
					return false;
			return true;
		}
	};
	std::vector<literal> all;
	std::vector<uint64_t> pairs; /* a bit a pair */
	struct any_byte rare;
	bool too_many = false; /* rare bytes */

	static size_t pair_of(char a, char b)
	{
		return static_cast<unsigned char>(a) |
		       static_cast<size_t>(static_cast<unsigned char>(b)) << 8;
	}

	void set_pair(char a, char b)
	{
		pairs[pair_of(a, b) / 64] |= uint64_t{1} << pair_of(a, b) % 64;
	}

	void set_bytes(const literal &l)
	{
		char a = l.text[l.pair], b = l.text[l.pair + 1], r = l.text[l.rare];

		pairs.resize(65536 / 64);
		for (int i = 0; i < (l.fold ? 4 : 1); i++)
			set_pair(i & 1 ? upper(a) : a, i & 2 ? upper(b) : b);
		too_many |= !rare.add(r) || (l.fold && !rare.add(upper(r)));
	}

	void add(const struct rx_literal &from)
	{
		literal l{std::string(from.bytes, from.len), 0, 0, from.fold};
		const std::string &t = l.text;

		if (l.fold)
			for (char &b : l.text)
				b = lower(b);
		for (size_t i = 1; i < t.size(); i++)
			if (commonness(t[i]) < commonness(t[l.rare]))
				l.rare = i;
		for (size_t i = 1; i + 1 < t.size(); i++)
			if (commonness(t[i]) + commonness(t[i + 1]) <
				commonness(t[l.pair]) + commonness(t[l.pair + 1]))
				l.pair = i;
		set_bytes(l);
		all.push_back(std::move(l));
	}

	bool any_at(const char *begin, const char *p, const char *end, size_t literal::*at) const
	{
		for (const literal &l : all)
			if (l.is_at(begin, p, end, l.*at))
				return true;
		return false;
	}

	/* A place inside an occurrence of any: the first one whose pair or rare byte comes; no
	 * occurrence lies before it whole. NULL: none. */
	const char *find(const char *p, const char *end) const
	{
		const char *begin = p;
		size_t misses = 0;

		while (!too_many &&
			!(misses > 64 && misses * 16 > static_cast<size_t>(p - begin))) {
			p = rare.find(p, end);
			if (!p || any_at(begin, p, end, &literal::rare))
				return p;
			p++;
			misses++;
		}
		/* What begins in front of p and was not complete there is still to be found. */
		p -= std::min(static_cast<size_t>(p - begin), size_t{RX_LITERAL_BYTES_MAX});
		for (; p + 1 < end; p++) {
			size_t pair = pair_of(p[0], p[1]);

			if ((pairs[pair / 64] >> pair % 64 & 1) &&
				any_at(begin, p, end, &literal::pair))
				return p;
		}
		return nullptr;
	}
};

} // namespace

struct rx {
	std::string pattern; /* as given */
	unsigned flags = 0;
	std::unique_ptr<RE2> exact, tagged, scan;
	struct one_literal one;
	struct some_literals some;
	struct rx_pattern names = {}; /* owns the names */
	int groups = 1;
	struct rx_set words = {};
	bool words_known = false;
	/* the line */
	StringPiece line;
	bool is_tagged = false;
	std::string tags;	     /* the line, tagged */
	std::vector<size_t> borders; /* where each character's first tag is, and the end */
	std::vector<StringPiece> found;

	~rx()
	{
		rx_pattern_done(&names);
		rx_set_done(&words);
	}
};

namespace
{

int compile(const struct rx *rx, enum rx_form form, std::unique_ptr<RE2> &ret,
	struct rx_pattern *ret_pattern, struct err *e)
{
	StringPiece text(rx->pattern);
	int r;

	if (!(rx->flags & RX_LITERAL)) {
		r = rx_translate(rx->pattern.data(), rx->pattern.size(),
			(rx->flags & RX_IGNORE_CASE) != 0, form, eval_class, ret_pattern, e);
		if (r < 0)
			return r;
		text = StringPiece(reinterpret_cast<const char *>(ret_pattern->re2.data),
			ret_pattern->re2.len);
	}
	ret.reset(new RE2(text, options(rx->flags, form == RX_FORM_SCAN)));
	return ret->ok() ? 0 : refuse(*ret, e);
}

/* What rx_scan looks for instead of the pattern, if anything. */
void choose_literals(struct rx *rx)
{
	const struct rx_literals &found = rx->names.literals;

	if (rx->flags == RX_LITERAL) {
		rx->one.set(rx->pattern);
		return;
	}
	if (found.n == 1 && !found.v[0].fold) {
		rx->one.set(std::string(found.v[0].bytes, found.v[0].len));
		return;
	}
	for (size_t i = 0; i < found.n; i++)
		if (found.v[i].len < 2)
			return;
	for (size_t i = 0; i < found.n; i++)
		rx->some.add(found.v[i]);
}

int compile_all(struct rx *rx, struct err *e)
{
	struct rx_pattern tagged = {};
	int r = compile(rx, RX_FORM_EXACT, rx->exact, &rx->names, e);

	if (r < 0)
		return r;
	if (rx->names.boundary) {
		r = compile(rx, RX_FORM_TAGGED, rx->tagged, &tagged, e);
		rx_pattern_done(&tagged);
		if (r < 0)
			return r;
	}
	rx->groups = rx->exact->NumberOfCapturingGroups() + 1;
	choose_literals(rx);
	return 0;
}

bool is_word(struct rx *rx, uint32_t c)
{
	const struct rx_range *begin, *end, *at;

	if (c < 0x80)
		return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || c == '_' ||
		       (c >= 'a' && c <= 'z');
	if (!rx->words_known) {
		eval_class((std::string("[") + RX_WORD_ITEMS + "]").c_str(), &rx->words, nullptr);
		rx_set_normalise(&rx->words);
		rx->words_known = true;
	}
	begin = rx->words.r;
	end = begin + rx->words.n;
	at = std::upper_bound(
		begin, end, c, [](uint32_t ch, const struct rx_range &r) { return ch < r.lo; });
	return at > begin && c <= at[-1].hi;
}

void tag_line(struct rx *rx)
{
	const char *p = rx->line.data(), *end = p + rx->line.size();

	rx->tags.clear();
	rx->borders.clear();
	while (p < end) {
		char tag = is_word(rx, char_at(p)) ? RX_TAG_WORD : RX_TAG_OTHER;
		size_t n = char_len(*p);

		rx->borders.push_back(rx->tags.size());
		rx->tags += tag;
		rx->tags.append(p, n);
		rx->tags += tag;
		p += n;
	}
	rx->borders.push_back(rx->tags.size());
}

/* A place in the line to its place in the tagged one. */
size_t to_tagged(const struct rx *rx, size_t at)
{
	size_t lo = 0, hi = rx->borders.size() - 1;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (rx->borders[mid] - 2 * mid < at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return rx->borders[lo];
}

size_t from_tagged(const struct rx *rx, size_t at)
{
	auto it = std::lower_bound(rx->borders.begin(), rx->borders.end(), at);

	return at - 2 * static_cast<size_t>(it - rx->borders.begin());
}

bool find_tagged(struct rx *rx, size_t from, struct rx_span *spans, size_t n)
{
	size_t want = n ? n + 1 : 0;

	rx->found.resize(want);
	if (!rx->tagged->Match(rx->tags, to_tagged(rx, from), rx->tags.size(), RE2::ANCHOR_START,
		    rx->found.data(), static_cast<int>(want)))
		return false;
	for (size_t i = 0; i < n; i++) {
		const StringPiece &m = rx->found[i + 1];
		size_t at = static_cast<size_t>(m.data() - rx->tags.data());

		spans[i] = m.data() ? rx_span{from_tagged(rx, at), from_tagged(rx, at + m.size())}
				    : rx_span{RX_UNSET, RX_UNSET};
	}
	return true;
}

bool is_ascii(const char *s, size_t len)
{
	unsigned char all = 0;

	for (size_t i = 0; i < len; i++)
		all |= static_cast<unsigned char>(s[i]);
	return all < 0x80;
}

} // namespace

int rx_new(const char *pattern, size_t len, unsigned flags, struct rx **ret, struct err *e)
{
	std::unique_ptr<struct rx> rx(new struct rx);
	int r;

	if (len > RX_PATTERN_MAX)
		return err_set(e, "S217", EINVAL,
			"pattern does not compile: it has %zu bytes, %u are allowed", len,
			RX_PATTERN_MAX);
	rx->pattern.assign(pattern, len);
	rx->flags = flags;
	r = compile_all(rx.get(), e);
	if (r < 0)
		return r;
	rx_line(rx.get(), "", 0);
	*ret = rx.release();
	return 0;
}

void rx_free(struct rx *rx)
{
	delete rx;
}

size_t rx_groups(const struct rx *rx)
{
	return static_cast<size_t>(rx->groups);
}

int rx_group_named(const struct rx *rx, const char *name, size_t len)
{
	for (size_t i = 0; i < rx->names.names_n; i++) {
		const struct rx_name *n = &rx->names.names[i];

		if (n->len == len && memcmp(n->name, name, len) == 0)
			return n->group;
	}
	return -1;
}

void rx_line(struct rx *rx, const char *line, size_t len)
{
	rx->line = StringPiece(len ? line : "", len);
	rx->is_tagged = rx->tagged && len <= RX_BOUNDARY_LINE_MAX && !is_ascii(line, len);
	if (rx->is_tagged)
		tag_line(rx);
}

bool rx_find(struct rx *rx, size_t from, struct rx_span *spans, size_t n)
{
	n = std::min(n, rx_groups(rx));
	if (rx->is_tagged)
		return find_tagged(rx, from, spans, n);
	rx->found.resize(n);
	if (!rx->exact->Match(rx->line, from, rx->line.size(), RE2::UNANCHORED, rx->found.data(),
		    static_cast<int>(n)))
		return false;
	for (size_t i = 0; i < n; i++) {
		const StringPiece &m = rx->found[i];
		size_t at = static_cast<size_t>(m.data() - rx->line.data());

		spans[i] = m.data() ? rx_span{at, at + m.size()} : rx_span{RX_UNSET, RX_UNSET};
	}
	return true;
}

bool rx_scan(struct rx *rx, const char *block, size_t len, size_t from, size_t *ret_at)
{
	StringPiece m;

	if (!rx->one.text.empty() || !rx->some.all.empty()) {
		const char *p = rx->one.text.empty() ? rx->some.find(block + from, block + len)
						     : rx->one.find(block + from, block + len);

		if (p)
			*ret_at = static_cast<size_t>(p - block);
		return p != nullptr;
	}
	if (!rx->scan) {
		struct rx_pattern scan = {};
		int r = compile(rx, RX_FORM_SCAN, rx->scan, &scan, nullptr);

		rx_pattern_done(&scan);
		if (r < 0) /* does not fit: then every line may match */
			rx->scan.reset(new RE2("", options(0, true)));
	}
	if (!rx->scan->Match(StringPiece(block, len), from, len, RE2::UNANCHORED, &m, 1))
		return false;
	*ret_at = static_cast<size_t>(m.data() - block);
	return true;
}
