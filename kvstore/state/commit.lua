-- Commits a transaction, or stages a part of a large one. The fence of fence.py and stored.lua are prepended.
-- KEYS: launch, index, meta, acknowledgement, acknowledgement of the transaction before it.
-- ARGV: launch, prefix of all keys, expiry of the acknowledgement and of the one before it in ms, transaction,
-- number of the part (0: all of it at once), what about the lock, is it the last part, records to settle at once,
-- number of reads, for each read its key and version,
-- then for each write: name, key, id for a new list, number of pieces, pieces; the piece of an increment is the amount.
-- Everything is checked before the first write, so nothing is ever applied in part.

local ABSENT = '0 '
local LOCKED_MS = 5000

local acknowledged = redis.call('GET', KEYS[4])
if acknowledged then return {'ok', acknowledged, ''} end

local transaction, part, locking, last, at = ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8] == '1', 10
local mine = part > 0 and staged(transaction)
local settling = redis.call('HGET', index, '')  -- a committed transaction whose records are not all in the index yet
if mine then
    local done = tonumber(redis.call('HGET', mine, '') or 0)
    if part <= done then return {'ok', '', ''} end
    if part > done + 1 then return {'resume', tostring(done)} end
end
local holder = redis.call('GET', lock)
if locking == 'held' and holder ~= transaction then return {'lost', ''} end
if locking ~= 'ignored' and holder and holder ~= transaction then return {'wait', ''} end
if last and settling then return {'unsettled', settling} end

local function take() at = at + 1; return ARGV[at - 1] end
local function stored(key)
    local record = settling and redis.call('HGET', staged(settling), key) or redis.call('HGET', index, key) or ''
    return record == '' and ABSENT or record
end
local records = {}
local function record(key)
    if not records[key] then
        local own = mine and redis.call('HGET', mine, key)
        records[key] = own == '' and ABSENT or own or stored(key)
    end
    return records[key]
end

for _ = 1, tonumber(take()) do
    local key, version = take(), take()
    local now
    if key == '' then now = redis.call('HGET', meta, 'keys') or '0' else now = string.match(stored(key), '^%S+') end
    if now ~= version then return {'conflict', key} end
end

local MAX_COUNT = 2^53 - 1  -- beyond it two integers can have the same floating-point value
local function counted(key, by)
    local old = record(key)
    local count = old == ABSENT and '0' or string.match(old, '^%S+ n(%-?%d+)\n$')
        or string.match(old, '^%S+ v%- 0 %d+ %d+\n....(%-?%d+)$')
    local sum = count and tonumber(count) + tonumber(by)
    if sum and math.abs(tonumber(count)) <= MAX_COUNT and math.abs(sum) <= MAX_COUNT then return string.format('%.0f', sum) end
end

local writes, frees_only = {}, true
while at <= #ARGV do
    local write = {name = take(), key = take(), list = take(), pieces = {}}
    local count = tonumber(take())
    if write.name == 'increment' then
        write.count = counted(write.key, take())
        if not write.count then return {'notacounter', write.key} end
    else
        for n = 1, count do
            write.pieces[n] = take()
            local _, whole = each_chunk(write.pieces[n], size)
            if not whole then return {'torn', write.key} end
        end
    end
    if write.name == 'append' and string.match(record(write.key), '^%S+ [vn]') then return {'notalist', write.key} end
    if write.name ~= 'delete' then frees_only = false end
    writes[#writes + 1] = write
end
if #writes == 0 and not mine then return {'ok', '0', ''} end

-- A server without memory refuses a script's first write, unless it is one that needs none.
if frees_only then redis.call('HDEL', meta, '') end
local version, key_set_changed = transaction, 0
if mine then
    redis.call('HSET', open, transaction, redis.call('TIME')[1])
    if locking == 'taken' or locking == 'held' then redis.call('SET', lock, transaction, 'PX', LOCKED_MS) end
    redis.call('HSET', mine, '', part)
else
    version = string.format('%.0f', redis.call('HINCRBY', meta, 'commits', 1))
end

local function extend(list, count, pieces)
    local name = prefix .. 'list:' .. list
    -- What a transaction that was not committed had appended.
    if redis.call('LLEN', name) > count then redis.call('LTRIM', name, 0, count - 1) end
    for _, piece in ipairs(pieces) do
        redis.call('RPUSH', name, piece)
        if not string.match(piece, '^%a%- ') then redis.call('RPUSH', name .. ':big', string.match(piece, '^[^\n]*')) end
    end
end
local new_records = {}
local function put(key, rest)
    local new = rest and version .. ' ' .. rest
    if mine then
        new_records[#new_records + 1] = key
        new_records[#new_records + 1] = new or ''
    elseif new then
        key_set_changed = key_set_changed + redis.call('HSET', index, key, new)
    else
        key_set_changed = key_set_changed + redis.call('HDEL', index, key)
    end
    records[key] = new or ABSENT
end

for _, write in ipairs(writes) do
    local unsettled = not mine and settling and redis.call('HGET', staged(settling), write.key)
    if unsettled then settle(settling, {write.key}, {unsettled}) end
    for _, piece in ipairs(write.pieces) do each_chunk(piece, keep) end
    if write.name == 'append' then
        local list, count = string.match(record(write.key), '^%S+ l(%S+) (%d+)')
        list, count = list or write.list, tonumber(count or '0')
        extend(list, count, write.pieces)
        put(write.key, 'l' .. list .. ' ' .. count + #write.pieces .. '\n')
    elseif write.name == 'increment' then
        put(write.key, 'n' .. write.count .. '\n')
    else
        if not mine then free(record(write.key)) end
        if write.name == 'value' then
            put(write.key, write.pieces[1])
        elseif write.name == 'list' then
            extend(write.list, 0, write.pieces)
            put(write.key, 'l' .. write.list .. ' ' .. #write.pieces .. '\n')
        else
            put(write.key)
        end
    end
end
if mine then
    call_with('HSET', mine, new_records)
    if not last then return {'ok', '', ''} end
    -- From here on, the staged records count.
    redis.call('HSET', index, '', transaction)
    redis.call('HDEL', mine, '')
    redis.call('HDEL', open, transaction)
    redis.call('UNLINK', lock)
    redis.call('HSET', meta, 'settled_at_once', ARGV[9])
    version = string.format('%.0f', redis.call('HINCRBY', meta, 'commits', 1))
    settling, key_set_changed = transaction, 1
end
if key_set_changed > 0 then redis.call('HINCRBY', meta, 'keys', 1) end
redis.call('SET', KEYS[4], version, 'PX', ARGV[3])
-- Whoever begins a transaction has got the answer to the one before it.
if KEYS[5] ~= KEYS[4] then redis.call('PEXPIRE', KEYS[5], ARGV[4]) end
return {'ok', version, settling or ''}
