/* The texts of the live page as the build embeds them; see page.h. */
#ifndef SL_ROUTER_PAGE_TEXTS_H
#define SL_ROUTER_PAGE_TEXTS_H

extern const unsigned char sl_page_html[], sl_page_css[], sl_page_js[];
extern const unsigned long sl_page_html_len, sl_page_css_len, sl_page_js_len;

#endif
