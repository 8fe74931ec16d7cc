/*
 * Results as an SVG: for each length a row of panels with accuracy over budget, one for the mean of the tasks and one
 * for each task, and where bytes are measured one with the mean over the bytes that a new token reads, metadata
 * included. A name of settings is a line with its own colour and mark; the baseline, and settings without a budget, are
 * horizontal lines. Plain SVG 1.1 without scripts or fonts of its own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"

enum {
    COLUMNS = 4,
    PANEL_W = 240,
    PANEL_H = 190,
    LEFT = 40, /* within a panel, around the axes */
    RIGHT = 12,
    TOP = 26,
    BOTTOM = 30,
    MARGIN = 14,
    LEGEND_H = 22,
    HEADING_H = 26,
    MEAN = -1, /* instead of the number of a task */
    MEAN_BYTES = -2,
};

/* Colours that people with colour blindness can tell apart (Okabe and Ito). */
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                      "#e69f00", "#56b4e9", "#8c6d1f", "#5b3a8c"};
static const char baseline_colour[] = "#555555";

typedef struct plot {
    const sl_eval_result *r;
    FILE *to;
    double x, y;      /* of the panel's corner */
    double low, high; /* log2 of the smallest and the largest value of the axis: budgets, or bytes */
    bool bytes;       /* of the panel: the axis has bytes */
    int32_t *series;  /* [n_settings]: number of the setting's name, in the order of first use */
    int32_t n_series, panel_rows;
} plot;

static void text_xml(FILE *to, const char *s)
{
    for (; *s; s++)
        if (*s == '<')
            fputs("&lt;", to);
        else if (*s == '>')
            fputs("&gt;", to);
        else if (*s == '&')
            fputs("&amp;", to);
        else if (*s == '"')
            fputs("&quot;", to);
        else if ((unsigned char)*s >= ' ')
            fputc(*s, to);
}

static double at_x(const plot *p, double value)
{
    const double span = p->high > p->low ? (log2(value) - p->low) / (p->high - p->low) : 0.5;
    return p->x + LEFT + span * (PANEL_W - LEFT - RIGHT);
}

static double at_y(const plot *p, double share)
{
    return p->y + TOP + (1 - share) * (PANEL_H - TOP - BOTTOM);
}

static void label(const plot *p, double x, double y, int size, const char *anchor, const char *text)
{
    fprintf(p->to, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\">", x, y, size, anchor);
    text_xml(p->to, text);
    fputs("</text>\n", p->to);
}

static void line(const plot *p, double x0, double y0, double x1, double y1, const char *style)
{
    fprintf(p->to, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x0, y0, x1, y1, style);
}

/* The mark of a series, so that lines can be told apart without colours. */
static void mark(const plot *p, int32_t series, double x, double y)
{
    const char *colour = colours[(size_t)series % SL_COUNT(colours)];
    switch (series % 4) {
    case 0:
        fprintf(p->to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\" fill=\"%s\"/>\n", x, y, colour);
        return;
    case 1:
        fprintf(p->to, "<rect x=\"%.1f\" y=\"%.1f\" width=\"6\" height=\"6\" fill=\"%s\"/>\n", x - 3, y - 3,
                colour);
        return;
    case 2:
        fprintf(p->to, "<path d=\"M%.1f %.1fl4 7h-8z\" fill=\"%s\"/>\n", x, y - 4, colour);
        return;
    default:
        fprintf(p->to, "<path d=\"M%.1f %.1fl4 4l-4 4l-4 -4z\" fill=\"%s\"/>\n", x, y - 4, colour);
    }
}

static void series_style(int32_t series, bool level, char out[96])
{
    snprintf(out, 96, "stroke=\"%s\" stroke-width=\"1.8\" fill=\"none\"%s",
             colours[(size_t)series % SL_COUNT(colours)], level ? " stroke-dasharray=\"2 3\"" : "");
}

/* ---- a panel ---- */

/* Accuracy of a task, or the mean over the tasks that have answers; -1: there are none. */
static double accuracy(const plot *p, int32_t task, int32_t length, int32_t setting)
{
    double sum = 0;
    int32_t n = 0;
    if (task != MEAN)
        return sl_eval_accuracy(sl_eval_row_of(p->r, task, length, setting));
    for (int32_t t = 0; t < p->r->opts->n_tasks; t++) {
        const double a = sl_eval_accuracy(sl_eval_row_of(p->r, t, length, setting));
        if (a >= 0)
            sum += a, n++;
    }
    return n ? sum / n : -1;
}

/* Bytes that a new token reads under a setting, over all tasks; 0: not measured. */
static double read_bytes(const plot *p, int32_t length, int32_t setting)
{
    sl_eval_reads all = {0};
    for (int32_t t = 0; t < p->r->opts->n_tasks; t++) {
        const sl_eval_row *row = sl_eval_row_of(p->r, t, length, setting);
        if (row)
            sl_eval_reads_add(&all, &row->reads);
    }
    return all.steps ? (double)(all.row_bytes + all.meta_bytes) / (double)all.steps : 0;
}

/* The place of a setting on the axis of the panel; 0: it has none. */
static double value_of(const plot *p, int32_t length, int32_t setting)
{
    return p->bytes ? read_bytes(p, length, setting) : p->r->opts->settings[setting].budget;
}

static void bound(plot *p, int32_t length)
{
    p->low = INFINITY, p->high = -INFINITY;
    for (int32_t s = 0; s < p->r->opts->n_settings; s++) {
        const double v = value_of(p, length, s);
        if (v > 0 && !p->r->opts->settings[s].baseline) {
            p->low = fmin(p->low, log2(v));
            p->high = fmax(p->high, log2(v));
        }
    }
    if (p->bytes && p->low <= p->high)
        p->low = floor(p->low), p->high = ceil(p->high);
}

static bool first_with_budget(const sl_eval_opts *o, int32_t setting)
{
    for (int32_t s = 0; s < setting; s++)
        if (o->settings[s].budget == o->settings[setting].budget)
            return false;
    return o->settings[setting].budget > 0 && !o->settings[setting].baseline;
}

static void tick(const plot *p, double value, const char *text)
{
    line(p, at_x(p, value), at_y(p, 0), at_x(p, value), at_y(p, 0) + 4, "stroke=\"#333333\"");
    label(p, at_x(p, value), at_y(p, 0) + 15, 10, "middle", text);
}

static void ticks(const plot *p)
{
    const sl_eval_opts *o = p->r->opts;
    char text[32];
    for (int32_t s = 0; s < o->n_settings && !p->bytes; s++)
        if (first_with_budget(o, s)) {
            snprintf(text, sizeof text, "%d", o->settings[s].budget);
            tick(p, o->settings[s].budget, text);
        }
    for (double v = p->low; p->bytes && v <= p->high; v++) {
        snprintf(text, sizeof text, "%g K", exp2(v - 10));
        tick(p, exp2(v), text);
    }
}

static void axes(const plot *p, const char *title)
{
    char text[16];
    label(p, p->x + LEFT + (PANEL_W - LEFT - RIGHT) / 2.0, p->y + 16, 13, "middle", title);
    for (int i = 0; i <= 4; i++) {
        line(p, p->x + LEFT, at_y(p, i / 4.0), p->x + PANEL_W - RIGHT, at_y(p, i / 4.0),
             "stroke=\"#dddddd\"");
        snprintf(text, sizeof text, "%d%%", 25 * i);
        label(p, p->x + LEFT - 5, at_y(p, i / 4.0) + 4, 10, "end", text);
    }
    ticks(p);
    line(p, p->x + LEFT, at_y(p, 0), p->x + PANEL_W - RIGHT, at_y(p, 0), "stroke=\"#333333\"");
}

static void level(const plot *p, double share, const char *style)
{
    line(p, p->x + LEFT, at_y(p, share), p->x + PANEL_W - RIGHT, at_y(p, share), style);
}

static void draw_series(const plot *p, int32_t series, int32_t task, int32_t length)
{
    const sl_eval_opts *o = p->r->opts;
    char style[96];
    double x = 0, y = 0;
    bool begun = false;
    for (int32_t s = 0; s < o->n_settings; s++) {
        const double a = accuracy(p, task, length, s);
        if (p->series[s] != series || a < 0)
            continue;
        const double value = value_of(p, length, s);
        series_style(series, value <= 0, style);
        if (value <= 0) {
            if (!p->bytes)
                level(p, a, style);
            continue;
        }
        const double to_x = at_x(p, value), to_y = at_y(p, a);
        if (begun)
            line(p, x, y, to_x, to_y, style);
        mark(p, series, to_x, to_y);
        x = to_x, y = to_y, begun = true;
    }
}

static void panel(plot *p, int32_t task, int32_t length)
{
    const int32_t baseline = sl_eval_baseline(p->r->opts);
    const double dense = baseline < 0 ? -1 : accuracy(p, task, length, baseline);
    char style[64];
    const char *title = p->bytes       ? "mean, over bytes read"
                        : task == MEAN ? "mean of the tasks"
                                       : p->r->opts->tasks[task].name;
    bound(p, length);
    axes(p, title);
    snprintf(style, sizeof style, "stroke=\"%s\" stroke-dasharray=\"6 4\"", baseline_colour);
    if (dense >= 0)
        level(p, dense, style);
    for (int32_t i = 0; i < p->n_series; i++)
        draw_series(p, i, task, length);
}

/* ---- the picture ---- */

static const char *series_name(const plot *p, int32_t series)
{
    for (int32_t s = 0; s < p->r->opts->n_settings; s++)
        if (p->series[s] == series)
            return p->r->opts->settings[s].name;
    return "";
}

/* One line per entry; the baseline is the first. */
static void legend(const plot *p)
{
    const int32_t baseline = sl_eval_baseline(p->r->opts);
    const double x = MARGIN + 6;
    double y = MARGIN + 12;
    char style[96];
    if (baseline >= 0) {
        snprintf(style, sizeof style, "stroke=\"%s\" stroke-dasharray=\"6 4\"", baseline_colour);
        line(p, x, y - 4, x + 28, y - 4, style);
        label(p, x + 36, y, 13, "start", p->r->opts->settings[baseline].name);
        y += LEGEND_H;
    }
    for (int32_t i = 0; i < p->n_series; i++, y += LEGEND_H) {
        series_style(i, false, style);
        line(p, x, y - 4, x + 28, y - 4, style);
        mark(p, i, x + 14, y - 4);
        label(p, x + 36, y, 13, "start", series_name(p, i));
    }
}

static void name_series(plot *p)
{
    const sl_eval_opts *o = p->r->opts;
    for (int32_t s = 0; s < o->n_settings; s++) {
        p->series[s] = -1; /* the baseline is none */
        if (o->settings[s].baseline)
            continue;
        for (int32_t before = 0; before < s; before++)
            if (p->series[before] >= 0 && strcmp(o->settings[before].name, o->settings[s].name) == 0)
                p->series[s] = p->series[before];
        if (p->series[s] < 0)
            p->series[s] = p->n_series++;
    }
}

/* Whether any setting of any length has its bytes. */
static bool has_bytes(const plot *p)
{
    for (int32_t i = 0; i < p->r->n_rows; i++)
        if (p->r->rows[i].reads.steps)
            return true;
    return false;
}

static void place_panel(plot *p, int32_t at, double top, int32_t task, int32_t length)
{
    p->x = MARGIN + at % COLUMNS * PANEL_W;
    p->y = top + HEADING_H + at / COLUMNS * PANEL_H;
    p->bytes = task == MEAN_BYTES;
    panel(p, task == MEAN_BYTES ? MEAN : task, length);
}

static void draw_length(plot *p, int32_t length, double top)
{
    const sl_eval_opts *o = p->r->opts;
    char heading[128];
    snprintf(heading, sizeof heading, "%d tokens of prompt and answer: %s over budget", o->lengths[length],
             sl_eval_of_texts(o) ? "next tokens of dense attention" : "right answers");
    label(p, MARGIN + 6, top + 18, 14, "start", heading);
    int32_t at = 0;
    place_panel(p, at++, top, MEAN, length);
    if (has_bytes(p))
        place_panel(p, at++, top, MEAN_BYTES, length);
    for (int32_t i = 0; i < o->n_tasks; i++)
        place_panel(p, at++, top, i, length);
}

void sl_eval_svg(const sl_eval_result *r, FILE *to)
{
    const sl_eval_opts *o = r->opts;
    plot p = {.r = r, .to = to, .series = calloc((size_t)o->n_settings + 1, sizeof(int32_t))};
    if (!p.series)
        return;
    name_series(&p);
    const int32_t panels = 1 + has_bytes(&p) + o->n_tasks;
    p.panel_rows = (panels + COLUMNS - 1) / COLUMNS;
    const double legend_h = LEGEND_H * (p.n_series + (sl_eval_baseline(o) >= 0));
    const double block = HEADING_H + p.panel_rows * PANEL_H;
    const double width = 2 * MARGIN + (panels < COLUMNS ? panels : COLUMNS) * PANEL_W;
    const double height = 2 * MARGIN + legend_h + o->n_lengths * block;
    fprintf(
        to,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
        "height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" fill=\"#222222\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
        width, height, width, height);
    legend(&p);
    for (int32_t l = 0; l < o->n_lengths; l++)
        draw_length(&p, l, MARGIN + legend_h + l * block);
    fputs("</svg>\n", to);
    free(p.series);
}
