function e(e){return e===null?``:typeof e==`string`?e:e.flatMap(e=>{let{text:t}=e;return typeof t==`string`?[t]:[]}).join(`
`)}function t(t){return e(t.content)||t.tool_results.map(t=>e(t.content??null)).join(`
`)}function n(e,t=160){let n=e.replaceAll(/\s+/g,` `).trim();return n.length>t?`${n.slice(0,t-1)}…`:n}export{t as n,n as t};